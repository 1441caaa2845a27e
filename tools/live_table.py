"""Record the live table of the demo as an animated PNG, for light and for dark pages.

    python tools/live_table.py [COMMAND...]

Runs the demo, or another command, on a terminal of its own, and looks at the screen from
when the table appears until the command ends. The pictures are `demo-light.png` and
`demo-dark.png` in `docs/pictures`. They play faster than the program runs, and say by how
much.
"""

import fcntl
import os
import pty
import struct
import sys
import tempfile
import termios
import time
from pathlib import Path

import matplotlib
import pyte
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS, LINES = 110, 40
FRAMES = 32  # of the whole recording
FRAME = 0.2  # seconds that each is shown
LAST = 4.0  # seconds that the last is shown
CURVE = tuple("▁▂▃▄▅▆▇█")  # how a line of the table ends

# The colours of the page, of text, and of what the terminal calls by these names: `ff005f`
# is the bar, `3a3a3a` the rest of it, and `5faf00` the bar when it is full.
THEMES = {
    "light": {
        "page": "#ffffff",
        "default": "#24292f",
        "cyan": "#0a7ea4",
        "ff005f": "#d6336c",
        "3a3a3a": "#d0d7de",
        "5faf00": "#1a7f37",
    },
    "dark": {
        "page": "#131416",
        "default": "#d0d7de",
        "cyan": "#56b6c2",
        "ff005f": "#f06595",
        "3a3a3a": "#3a3f45",
        "5faf00": "#57ab5a",
    },
}

Screen = tuple[tuple[pyte.screens.Char, ...], ...]


def main(command: list[str]) -> None:
    """Record the command, and write both pictures."""
    with tempfile.TemporaryDirectory() as folder:
        example = ROOT / "examples" / "ppo.py"
        command = command or [sys.executable, str(example), "--out", folder]
        seen = record(command)
    lines = max(len(screen) for _, screen in seen)
    seen = [(when, screen) for when, screen in seen if len(screen) == lines]
    seconds, screens = seen[-1][0] - seen[0][0], evenly(seen)
    text = f"played {seconds / (FRAMES * FRAME):.0f} times as fast"
    for theme, colours in THEMES.items():
        images = [draw(screen, colours, text) for screen in screens]
        path = PICTURES / f"demo-{theme}.png"
        shown = [1000 * FRAME] * (len(images) - 1) + [1000 * LAST]
        first, *others = images
        first.save(path, save_all=True, append_images=others, duration=shown, loop=0)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


def record(command: list[str]) -> list[tuple[float, Screen]]:
    """Return the screens with a table, and when each was seen."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "", "MPLBACKEND": "agg"}
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    seen = []
    while data := read(terminal):
        stream.feed(data)
        if table := table_of(screen):
            seen.append((time.monotonic(), table))
    os.waitpid(pid, 0)
    return seen


def read(terminal: int) -> bytes:
    """Return what comes next, nothing at the end."""
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says so when the command has ended
        return b""


def table_of(screen: pyte.Screen) -> Screen | None:
    """Return the lines of the table, from its progress to its last key."""
    texts = [line.rstrip() for line in screen.display]
    heads = [i for i, text in enumerate(texts) if text.endswith("trend")]
    if not heads or heads[0] == 0:
        return None
    start = end = heads[0] + 1
    while end < LINES and texts[end][-1:] in CURVE:
        end += 1
    return tuple(
        tuple(screen.buffer[line][column] for column in range(COLUMNS))
        for line in range(start - 2, end)
    )


def evenly(seen: list[tuple[float, Screen]]) -> list[Screen]:
    """Return one screen for each of some moments, at equal distances in time."""
    start, end = seen[0][0], seen[-1][0]
    moments = [start + (end - start) * i / (FRAMES - 1) for i in range(FRAMES)]
    return [[screen for when, screen in seen if when <= moment][-1] for moment in moments]


def draw(screen: Screen, colours: dict[str, str], note: str) -> Image.Image:
    """Draw the characters in their colours."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(str(folder / "DejaVuSansMono.ttf"), 15)
    small = ImageFont.truetype(str(folder / "DejaVuSans.ttf"), 11)
    wide, high, border = 9, 20, 14
    size = COLUMNS * wide + 2 * border, (len(screen) + 1) * high + 2 * border
    image = Image.new("RGB", size, colours["page"])
    pen = ImageDraw.Draw(image)
    for y, line in enumerate(screen):
        for x, char in enumerate(line):
            colour = colours.get(char.fg, colours["default"])
            if char.data.strip():
                pen.text((border + x * wide, border + y * high), char.data, colour, font)
    place = size[0] - border, size[1] - border
    pen.text(place, note, colours["default"], small, anchor="rs")
    return image


if __name__ == "__main__":
    main(sys.argv[1:])

"""Run examples, and keep their pictures for the documentation, with a palette.

The only picture of `examples/x.py` becomes `docs/pictures/x.png`. Of several, the one that
is called like the example does, and another one `y.png` becomes `x-y.png`. Examples whose
names are given are run, or else all.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLOURS = 256


def main(names: list[str]) -> None:
    """Draw the pictures of these examples."""
    PICTURES.mkdir(exist_ok=True)
    for path in sorted((ROOT / "examples").glob("*.py")):
        if not names or path.stem in names:
            with tempfile.TemporaryDirectory() as folder:
                draw(path, Path(folder))


def draw(example: Path, folder: Path) -> None:
    """Run an example in a folder, and keep the pictures that it has made."""
    subprocess.run(
        [sys.executable, example, "--out", folder],
        check=True,
        env=os.environ | {"MPLBACKEND": "agg"},
    )
    found = sorted(folder.rglob("*.png"))
    for picture in found:
        is_only = len(found) == 1 or picture.stem == example.stem
        name = example.stem if is_only else f"{example.stem}-{picture.stem}"
        new = PICTURES / f"{name}.png"
        shrunk(Image.open(picture)).save(new, optimize=True)
        print(f"{new.relative_to(ROOT)}: {new.stat().st_size / 1000:.0f} kB")


def shrunk(image: Image.Image) -> Image.Image:
    """The image with a palette. With 64 colours, curves would lose theirs."""
    return image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)


if __name__ == "__main__":
    main(sys.argv[1:])

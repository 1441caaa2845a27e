"""Find images and videos among logged arrays, and encode them as files.

    image   uint8[h, w, c]        a PNG file          c is 1, 3 or 4
    video   uint8[t, h, w, c]     a GIF file

Arrays of uint8 are recognised by these shapes. For other arrays, the user says what they
are: `kinds={"frame": "image"}`.
"""

import io
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from lox_host.extras import import_extra

Kind = Literal["image", "video", "histogram"]
KINDS = ("image", "video", "histogram")
# How many axes an image and a video have, without channels.
_AXES = {"image": 2, "video": 3}
# Milliseconds that a frame of a video is shown.
FRAME = 50


class Media(NamedTuple):
    """An image or a video of bytes, `(height, width, channels)`, with time in front."""

    kind: Literal["image", "video"]
    pixels: np.ndarray

    @property
    def suffix(self) -> str:
        return "png" if self.kind == "image" else "gif"

    @property
    def plain_pixels(self) -> np.ndarray:
        """The pixels, without the axis of channels if there is only one."""
        return self.pixels[..., 0] if self.pixels.shape[-1] == 1 else self.pixels

    def write(self, path: str, logger: str, extra: str) -> None:
        """Write a PNG or GIF file."""
        with open(path, "xb") as file:
            file.write(self.encoded(logger, extra))

    def encoded(self, logger: str, extra: str) -> bytes:
        """Return the content of a PNG or GIF file."""
        pillow = import_extra("PIL.Image", logger, extra)
        pixels = self.plain_pixels
        frames = pixels if self.kind == "video" else pixels[None]
        first, *others = [pillow.fromarray(frame) for frame in frames]
        file = io.BytesIO()
        if self.kind == "image":
            first.save(file, "PNG")
        else:
            options = {"append_images": others, "duration": FRAME, "loop": 0}
            first.save(file, "GIF", save_all=True, **options)
        return file.getvalue()


def check_kinds(kinds: Mapping[str, Any] | None) -> dict[str, Kind]:
    """Return what the user says of keys, or raise if lox does not know such a kind."""
    given = dict(kinds or {})
    for key, kind in given.items():
        if kind not in KINDS:
            names = ", ".join(map(repr, KINDS))
            raise ValueError(
                f"`kinds` says that {key!r} is {kind!r}. lox knows the kinds {names}."
            )
    return given


def kind_of(name: str, array: np.ndarray, axes: int, kinds: Mapping[str, Kind]) -> str:
    """Return what an array of rows is, `""` if it is nothing in particular.

    What cannot be an image or a video is none, whatever the user says.

    Args:
        name: Its name.
        array: The array, with rows and `axes - 1` axes of examples in front.
        axes: How many axes are in front of those that were logged.
        kinds: What the user says.
    """
    shape = array.shape[axes:]
    asked = kinds.get(name, "")
    if asked in _AXES and len(shape) >= _AXES[asked] and array.size:
        return asked
    if asked or array.dtype != np.uint8 or not array.size:
        return ""
    has_channels = len(shape) in (3, 4) and shape[-1] in (1, 3, 4)
    return ("image", "video")[len(shape) - 3] if has_channels else ""


def media_in(name: str, kind: Any, array: np.ndarray) -> Iterator[tuple[str, Media]]:
    """Yield the images or videos in an array, `name/0`, `name/1`, ... if several."""
    scale = 255 if array.dtype.kind == "f" else 1
    numbers = np.nan_to_num(np.ma.getdata(array))
    pixels = np.clip(numbers * scale, 0, 255).round().astype(np.uint8)
    has_channels = pixels.ndim > _AXES[kind] and pixels.shape[-1] in (1, 3, 4)
    pixels = pixels if has_channels else pixels[..., None]
    front = pixels.ndim - _AXES[kind] - 1
    for index in np.ndindex(pixels.shape[:front]):
        if np.ma.is_masked(array[index]):
            continue  # an example that did not log
        yield "/".join([name, *map(str, index)]), Media(kind, pixels[index])

"""Rows as the protocol buffers of TensorBoard."""

import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lox_host.extras import import_extra
from lox_host.writers._tracker_rows import (
    Histogram,
    TrackerRow,
    finite_elements,
    histograms,
    nonfinite_counts,
)

PARTS = {
    "events": "tensorboard.compat.proto.event_pb2",
    "summaries": "tensorboard.compat.proto.summary_pb2",
    "records": "tensorboard.summary.writer.record_writer",
    "texts": "tensorboard.plugins.text.summary_v2",
    "hparams": "tensorboard.plugins.hparams.summary_v2",
    "pillow": "PIL.Image",
}


class Events:
    """Makes the records of event files, as bytes.

    Args:
        images: Keys of arrays that are images.
        texts: Keys of arrays that are texts.
    """

    def __init__(self, images: Iterable[str], texts: Iterable[str]):
        self._board = {
            part: import_extra(module, "TensorBoardLogger", "tensorboard")
            for part, module in PARTS.items()
        }
        self._images, self._texts = set(images), set(texts)

    def file(self, file: Any) -> Any:
        """Return a writer of records to a file."""
        return self._board["records"].RecordWriter(file)

    def version(self) -> bytes:
        """Return the first record of each file."""
        return self._record(file_version="brain.Event:2")

    def config(self, entries: Mapping[str, Any], start: float) -> bytes:
        """Return the record of the hyperparameters."""
        shown = {
            name: x if isinstance(x, bool | int | float | str) else str(x)
            for name, x in entries.items()
        }
        hparams = self._board["hparams"].hparams_pb(shown, start_time_secs=start)
        return self._record(summary=hparams)

    def event(self, step: int, values: Sequence[Any]) -> bytes:
        """Return the record of values at a step."""
        return self._record(step=step, summary=self._summary(value=values))

    def values(self, row: TrackerRow) -> Iterator[tuple[str, Any]]:
        """Yield everything in a row, each with its key."""
        value = self._summary.Value
        for key, number in {**row.numbers, **row.other_step_values}.items():
            yield key, value(tag=key, simple_value=number)
        texts = {k: x for k, x in row.arrays.items() if k in self._texts}
        for key, array in texts.items():
            yield key, self._board["texts"].text_pb(key, _text(array)).value[0]
        others = {k: x for k, x in row.arrays.items() if k not in texts}
        images = {k: x for k, x in others.items() if self._is_image(k, x)}
        for key, array in images.items():
            for tag, pixels in _each_image(key, array):
                yield key, value(tag=tag, image=self._image(pixels))
        rest = {k: x for k, x in others.items() if k not in images}
        for key, histogram in histograms(rest).items():
            yield key, value(tag=key, histo=self._histogram(rest[key], histogram))
            for tag, number in nonfinite_counts({key: rest[key]}).items():
                yield key, value(tag=tag, simple_value=number)

    @property
    def _summary(self) -> Any:
        return self._board["summaries"].Summary

    def _record(self, **fields: Any) -> bytes:
        event = self._board["events"].Event(wall_time=time.time(), **fields)
        return event.SerializeToString()

    def _is_image(self, key: str, array: np.ndarray) -> bool:
        looks_so = array.dtype == np.uint8 and array.ndim == 3 and _has_channels(array)
        asked = key in self._images and array.ndim >= 2
        whole = array.size > 0 and not np.ma.is_masked(array)
        return whole and (looks_so or asked)

    def _histogram(self, array: np.ndarray, histogram: Histogram) -> Any:
        (counts, edges), x = histogram, finite_elements(array)
        return self._board["summaries"].HistogramProto(
            min=x.min(initial=edges[-1]),
            max=x.max(initial=edges[0]),
            num=x.size,
            sum=x.sum(),
            sum_squares=(x**2).sum(),
            bucket_limit=edges[1:].tolist(),
            bucket=counts.tolist(),
        )

    def _image(self, pixels: np.ndarray) -> Any:
        height, width, channels = pixels.shape
        file = io.BytesIO()
        flat = pixels[..., 0] if channels == 1 else pixels
        self._board["pillow"].fromarray(flat).save(file, "PNG")
        return self._summary.Image(
            height=height,
            width=width,
            colorspace=channels,
            encoded_image_string=file.getvalue(),
        )


def _has_channels(array: np.ndarray) -> bool:
    return array.ndim >= 3 and array.shape[-1] in (1, 3, 4)


def _each_image(key: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the images in an array with tags, as uint8 of `(height, width, channels)`."""
    scale = 255 if array.dtype.kind == "f" else 1
    pixels = np.clip(np.nan_to_num(array) * scale, 0, 255).round().astype(np.uint8)
    pixels = pixels if _has_channels(pixels) else pixels[..., None]
    for index in np.ndindex(pixels.shape[:-3]):
        yield "/".join([key, *map(str, index)]), pixels[index]


def _text(array: np.ndarray) -> str:
    return bytes(array.astype(np.uint8)).rstrip(b"\0").decode("utf-8", "replace")

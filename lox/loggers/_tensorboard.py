"""Runs as event files of TensorBoard, written with neither TensorFlow nor torch."""

import io
import itertools as it
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lox._writer import Batch, Run

from ._desk import OnError
from ._flat import Flat, flat
from ._logger import Logger
from ._tracker import histograms, imported, outside, parameters, title

PARTS = {
    "events": "tensorboard.compat.proto.event_pb2",
    "summaries": "tensorboard.compat.proto.summary_pb2",
    "records": "tensorboard.summary.writer.record_writer",
    "texts": "tensorboard.plugins.text.summary_v2",
    "hparams": "tensorboard.plugins.hparams.summary_v2",
    "pillow": "PIL.Image",
}


class TensorBoardLogger(Logger):
    """Writes runs for TensorBoard, each to a folder of its own, called after its key.

    Numbers are scalars, which TensorBoard holds as float32. They are at the step called
    `step`, or else the first one that is an integer, or else at the number of the row among
    those of the key. All steps but `step` are scalars, too. Arrays are histograms,
    `key/nonfinite` says how many of their elements are NaN or infinite; arrays of uint8
    with the shape `(height, width, 1, 3 or 4)` are images. Trees are `key/path`, complex
    values `key/real` and `key/imag`, typed PRNG keys `key/0`, `key/1`, ... The
    configuration is shown as hyperparameters.

    Args:
        dir: Where the folders are made. Those that are there already stay as they are.
        images: Keys of other arrays that are images: `(height, width)` or with channels,
            integers up to 255 or floats up to 1, or several of them along further axes in
            front.
        texts: Keys of arrays that are texts: the bytes of UTF-8, zeros at the end do not
            count.
        config: The configuration of the runs.
        on_error: See `Logger`.
        all_processes: See `Logger`.
        every: See `Logger`.
    """

    def __init__(
        self,
        dir: str | os.PathLike,
        *,
        images: Iterable[str] = (),
        texts: Iterable[str] = (),
        config: Mapping[str, Any] | None = None,
        on_error: OnError = "warn",
        all_processes: bool = False,
        every: float = 0.5,
    ):
        super().__init__(
            TensorBoardWriter(dir, images, texts),
            config=config,
            on_error=on_error,
            all_processes=all_processes,
            every=every,
        )


class TensorBoardWriter:
    """The back end of `TensorBoardLogger`."""

    def __init__(
        self,
        dir: str | os.PathLike,
        images: Iterable[str] = (),
        texts: Iterable[str] = (),
    ):
        name, extra = "TensorBoardLogger", "tensorboard"
        self._board = {part: imported(path, name, extra) for part, path in PARTS.items()}
        self._dir, self._images, self._texts = Path(dir), set(images), set(texts)
        self._files: dict[int, Any] = {}
        self._counts: dict[int, Counter[str]] = {}

    def open(self, run: Run) -> None:
        folder = _new_folder(self._dir, title(run))
        name = f"events.out.tfevents.{int(run.start)}.{socket.gethostname()}.{os.getpid()}"
        file = self._board["records"].RecordWriter((folder / name).open("xb"))
        self._files[run.id], self._counts[run.id] = file, Counter()
        self._add(run.id, file_version="brain.Event:2")
        if run.config:
            shown = {name: _shown(x) for name, x in parameters(run.config).items()}
            summary = self._board["hparams"].hparams_pb(shown, start_time_secs=run.start)
            self._add(run.id, summary=summary)
        file.flush()

    def write(self, batch: Batch) -> None:
        for row in flat(batch):
            at = self._steps(row)
            by_step: dict[int, list[Any]] = {}
            for key, value in self._values(row):
                by_step.setdefault(at[key], []).append(value)
            for step, values in by_step.items():
                summary = self._board["summaries"].Summary(value=values)
                self._add(row.run, step=step, summary=summary)

    def flush(self) -> None:
        for file in self._files.values():
            file.flush()

    def close(self, run: Run) -> None:
        self._files.pop(run.id).close()
        del self._counts[run.id]

    def _add(self, run: int, **fields: Any) -> None:
        event = self._board["events"].Event(wall_time=time.time(), **fields)
        self._files[run].write(event.SerializeToString())

    def _steps(self, row: Flat) -> dict[str, int]:
        """At which step each value of a row is."""
        names = [*row.numbers, *row.arrays, *row.beside]
        counts = self._counts[row.run]
        counts.update(names)
        if row.place is None:
            return {name: counts[name] - 1 for name in names}
        return dict.fromkeys(names, row.place)

    def _values(self, row: Flat) -> Iterator[tuple[str, Any]]:
        value = self._board["summaries"].Summary.Value
        for key, number in {**row.numbers, **row.beside}.items():
            yield key, value(tag=key, simple_value=number)
        images = {k: x for k, x in row.arrays.items() if k in self._images or _is_image(x)}
        for key, array in images.items():
            for tag, image in _each_image(key, array):
                yield key, value(tag=tag, image=self._image(image))
        texts = {k: x for k, x in row.arrays.items() if k in self._texts}
        for key, array in texts.items():
            yield key, self._board["texts"].text_pb(key, _text(array)).value[0]
        rest = {k: x for k, x in row.arrays.items() if k not in {**images, **texts}}
        for key, (counts, edges) in histograms(rest).items():
            yield key, value(tag=key, histo=self._histogram(rest[key], counts, edges))
        for key, number in outside(rest).items():
            yield key.removesuffix("/nonfinite"), value(tag=key, simple_value=number)

    def _histogram(self, array: np.ndarray, counts: np.ndarray, edges: np.ndarray) -> Any:
        finite = array[np.isfinite(array)].astype(np.float64)
        return self._board["summaries"].HistogramProto(
            min=finite.min(initial=edges[-1]),
            max=finite.max(initial=edges[0]),
            num=finite.size,
            sum=finite.sum(),
            sum_squares=(finite**2).sum(),
            bucket_limit=edges[1:].tolist(),
            bucket=counts.tolist(),
        )

    def _image(self, pixels: np.ndarray) -> Any:
        height, width, channels = pixels.shape
        file = io.BytesIO()
        pixels = pixels[..., 0] if channels == 1 else pixels
        self._board["pillow"].fromarray(pixels).save(file, "PNG")
        return self._board["summaries"].Summary.Image(
            height=height,
            width=width,
            colorspace=channels,
            encoded_image_string=file.getvalue(),
        )


def _new_folder(parent: Path, name: str) -> Path:
    folder, number = parent / name, it.count(2)
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            folder = parent / f"{name}-{next(number)}"


def _shown(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else str(value)


def _is_image(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and array.ndim == 3 and array.shape[-1] in (1, 3, 4)


def _each_image(key: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The images in an array with their tags, as `(height, width, channels)` of uint8."""
    scale = 255 if array.dtype.kind == "f" else 1
    pixels = np.clip(np.nan_to_num(array) * scale, 0, 255).round().astype(np.uint8)
    pixels = pixels if pixels.shape[-1] in (1, 3, 4) else pixels[..., None]
    lead = pixels.shape[:-3]
    for index in np.ndindex(lead):
        yield "/".join([key, *map(str, index)]), pixels[index]


def _text(array: np.ndarray) -> str:
    return bytes(array.astype(np.uint8)).rstrip(b"\0").decode("utf-8", "replace")

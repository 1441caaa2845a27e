"""Encode rows as protocol buffers of TensorBoard."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lox_host.extras import import_extra
from lox_host.histogram import Histogram
from lox_host.writers._media import Media
from lox_host.writers._tracker_rows import (
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
    "pillow": "PIL.Image",  # for images
}


class Events:
    """Makes the records of event files, as bytes.

    Args:
        texts: Keys of arrays that are texts.
    """

    def __init__(self, texts: Iterable[str]):
        self._board = {
            part: import_extra(module, "TensorBoardLogger", "tensorboard")
            for part, module in PARTS.items()
        }
        self._texts = set(texts)

    def file(self, file: Any) -> Any:
        """Return a writer of records to a file."""
        return self._board["records"].RecordWriter(file)

    def version(self, start: float) -> bytes:
        """Return the first record of each file."""
        return self._record(start, file_version="brain.Event:2")

    def config(self, entries: Mapping[str, Any], start: float) -> bytes:
        """Return the record of the hyperparameters."""
        shown = {
            name: x if isinstance(x, bool | int | float | str) else str(x)
            for name, x in entries.items()
        }
        hparams = self._board["hparams"].hparams_pb(shown, start_time_secs=start)
        return self._record(start, summary=hparams)

    def event(self, step: int, values: Sequence[Any], wall_time: float) -> bytes:
        """Return the record of values at a step."""
        return self._record(wall_time, step=step, summary=self._summary(value=values))

    def restart(self, step: int, wall_time: float) -> bytes:
        """Return the record that discards everything written at this step and later."""
        log = self._board["events"].SessionLog
        return self._record(wall_time, step=step, session_log=log(status=log.START))

    def values(self, row: TrackerRow) -> Iterator[tuple[str, Any]]:
        """Yield everything in a row, each with its key."""
        value = self._summary.Value
        for key, number in {**row.numbers, **row.other_step_values}.items():
            yield key, value(tag=key, simple_value=number)
        texts = {k: x for k, x in row.arrays.items() if k in self._texts}
        for key, array in texts.items():
            yield key, self._board["texts"].text_pb(key, _text(array)).value[0]
        others = {k: x for k, x in row.arrays.items() if k not in texts}
        for key, media in row.media.items():
            yield key, value(tag=key, image=self._image(media))
        for key, array in others.items():
            (histogram,) = histograms({key: array}).values()
            x = finite_elements(array)
            # TensorBoard draws by the buckets, and shows these numbers beside them.
            moments = x.size, x.sum(), (x**2).sum()
            ends = x.min(initial=histogram.edges[-1]), x.max(initial=histogram.edges[0])
            yield key, value(tag=key, histo=self._histogram(histogram, moments, ends))
            for tag, number in nonfinite_counts({key: array}).items():
                yield key, value(tag=tag, simple_value=number)
        for key, counted in row.counted.items():
            # The values are gone. Each is put in the middle of its bin.
            found, centers = counted.statistics(), counted.centers
            moments = [(counted.counts * centers**power).sum() for power in range(3)]
            ends = found.get("min", 0.0), found.get("max", 0.0)
            yield key, value(tag=key, histo=self._histogram(counted, moments, ends))

    @property
    def _summary(self) -> Any:
        return self._board["summaries"].Summary

    def _record(self, wall_time: float, **fields: Any) -> bytes:
        event = self._board["events"].Event(wall_time=wall_time, **fields)
        return event.SerializeToString()

    def _histogram(
        self, histogram: Histogram, moments: Sequence[float], ends: tuple[float, float]
    ) -> Any:
        """Return a histogram; `moments` are the number of values, their sum and squares."""
        return self._board["summaries"].HistogramProto(
            min=ends[0],
            max=ends[1],
            num=moments[0],
            sum=moments[1],
            sum_squares=moments[2],
            bucket_limit=histogram.edges[1:].tolist(),
            bucket=histogram.counts.tolist(),
        )

    def _image(self, media: Media) -> Any:
        """Return an image. TensorBoard shows a video as an image that moves, a GIF."""
        height, width, channels = media.pixels.shape[-3:]
        return self._summary.Image(
            height=height,
            width=width,
            colorspace=channels,
            encoded_image_string=media.encoded("TensorBoardLogger", "tensorboard"),
        )


def _text(array: np.ndarray) -> str:
    return bytes(array.astype(np.uint8)).rstrip(b"\0").decode("utf-8", "replace")

"""Histograms, images and videos in each tracker, read back by its own reader."""

import io
import pathlib

import jax
import numpy as np
import pytest
from PIL import Image

import lox
from lox import loggers
from lox_host.histogram import Histogram
from support import tracked
from support.truth import raises

pytestmark = pytest.mark.usefixtures("offline")

VALUES = np.array([[0.1, 0.2, 0.9, 2.5, np.nan], [1.2, 1.3, 2.2, 2.9, 0.4]], np.float32)
EDGES = [0.0, 1.0, 2.0, 3.0]
PICTURE = np.random.default_rng(0).integers(0, 256, (6, 5, 3)).astype(np.uint8)
# Frames of one color each: a GIF has few colors.
VIDEO = np.stack([np.full((4, 6, 3), 60 * i, np.uint8) for i in range(4)])
GRAY = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)


def shown(values):
    def step(i, x):
        lox.log({"net": {"h": lox.histogram(x, edges=EDGES)}, "loss": i}, step=i)
        return i + 1, None

    jax.lax.scan(step, 0, values)
    lox.log({"picture": PICTURE, "video": VIDEO}, step=7)
    lox.log({"gray": GRAY}, step=8)
    jax.vmap(lambda x: lox.log({"each": x}) and None)(np.stack([PICTURE, PICTURE // 2]))


def counts():
    """What NumPy counts, of both rows."""
    return [np.histogram(row[np.isfinite(row)], EDGES)[0].tolist() for row in VALUES]


def logged(logger):
    state = logger.init(jax.random.key(0))
    jax.jit(logger.tap(shown, state))(VALUES)
    lox.barrier()
    return state


def opened(data):
    return Image.open(io.BytesIO(data))


def assert_video(data):
    image = opened(data)
    frames = []
    for i in range(image.n_frames):
        image.seek(i)
        frames.append(np.asarray(image.convert("RGB")))
    assert np.array_equal(np.stack(frames), VIDEO)


@pytest.mark.xdist_group("tensorboard")
def test_tensorboard_shows_them(tmp_path):
    logger = loggers.TensorBoardLogger(tmp_path, kinds={"gray": "image"})
    logger.finish(logged(logger))
    (folder,) = tmp_path.iterdir()
    run = tracked.tensorboard_run(folder)
    found = [event.histogram_value for event in run.Histograms("net/h")]
    assert [own.bucket for own in found] == counts()
    assert [own.bucket_limit for own in found] == [EDGES[1:]] * 2
    assert [event.step for event in run.Histograms("net/h")] == [0, 1]
    assert run.Scalars("net/h/nonfinite")[0].value == 1
    data = {tag: run.Images(tag)[0].encoded_image_string for tag in run.Tags()["images"]}
    assert set(data) == {"picture", "video", "gray", "each/0", "each/1"}
    assert np.array_equal(np.asarray(opened(data["picture"])), PICTURE)
    assert np.array_equal(np.asarray(opened(data["each/1"])), PICTURE // 2)
    assert np.array_equal(np.asarray(opened(data["gray"])), np.round(255 * GRAY))
    assert_video(data["video"])
    assert run.Images("video")[0].step == 7


@pytest.mark.xdist_group("wandb")
def test_wandb_shows_them(tmp_path):
    logger = loggers.WandbLogger(dir=str(tmp_path), kinds={"gray": "image"})
    logger.finish(logged(logger))
    (run,) = tracked.wandb_runs(tmp_path).values()
    rows = run["rows"]
    found = [row["net/h"] for row in rows if "net/h" in row]
    assert [(own["_type"], own["values"], own["bins"]) for own in found] == [
        ("histogram", own, EDGES) for own in counts()
    ]
    by_key = {key: x for row in rows for key, x in row.items() if isinstance(x, dict)}
    kinds = {"picture": "image-file", "gray": "image-file", "video": "video-file"}
    assert {key: by_key[key]["_type"] for key in kinds} == kinds

    def file(key):
        (found,) = tmp_path.rglob(pathlib.Path(by_key[key]["path"]).name)
        return found.read_bytes()

    assert np.array_equal(np.asarray(opened(file("picture"))), PICTURE)
    assert np.array_equal(np.asarray(opened(file("each/1"))), PICTURE // 2)
    assert np.asarray(opened(file("gray"))).shape == GRAY.shape
    assert_video(file("video"))


@pytest.mark.xdist_group("mlflow")
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")
def test_mlflow_has_files(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    logger = loggers.MLflowLogger("media", tracking_uri=uri, kinds={"gray": "image"})
    state = logged(logger)
    (run,) = logger._host.writer._runs.values()
    logger.finish(state)
    client = mlflow.MlflowClient(uri)
    folder = pathlib.Path(client.download_artifacts(run, "", str(tmp_path)))

    def file(key, step, suffix):
        return (folder / key / f"{step:08d}.{suffix}").read_bytes()

    assert np.array_equal(np.asarray(opened(file("picture", 7, "png"))), PICTURE)
    assert np.array_equal(np.asarray(opened(file("each/1", 0, "png"))), PICTURE // 2)
    assert_video(file("video", 7, "gif"))
    points = tracked.mlflow_points(uri, run)
    assert points["net/h/count"] == [(0, 4), (1, 5)]
    assert points["net/h/max"] == [(0, 3), (1, 3)]


@pytest.mark.xdist_group("trackio")
def test_trackio_shows_them(tmp_path, monkeypatch):
    trackio = pytest.importorskip("trackio")
    for module in ("utils", "sqlite_storage"):
        monkeypatch.setattr(f"trackio.{module}.TRACKIO_DIR", tmp_path)
    for module in ("utils", "media.media"):
        monkeypatch.setattr(f"trackio.{module}.MEDIA_DIR", tmp_path / "media")
    logger = loggers.TrackioLogger("media", kinds={"gray": "image"})
    logger.finish(logged(logger))
    (run,) = tracked.trackio_runs(tmp_path, "media").values()
    by_key = {k: x for row in run["rows"] for k, x in row.items() if isinstance(x, dict)}
    kinds = {key: value["_type"] for key, value in by_key.items()}
    image, video = trackio.Image.TYPE, trackio.Video.TYPE
    assert kinds.items() >= {"picture": image, "gray": image, "video": video}.items()

    def file(key):
        return (tmp_path / "media" / by_key[key]["file_path"]).read_bytes()

    def rgb(key):
        return np.asarray(opened(file(key)).convert("RGB"))

    assert np.array_equal(rgb("picture"), PICTURE)
    assert np.array_equal(rgb("each/1"), PICTURE // 2)
    assert np.array_equal(rgb("gray")[..., 0], np.round(255 * GRAY))
    assert_video(file("video"))


@pytest.mark.xdist_group("neptune")
def test_neptune_has_histograms(tmp_path):
    pytest.importorskip("neptune_scale")
    logger = loggers.NeptuneLogger(log_directory=tmp_path)
    logger.finish(logged(logger))
    (run,) = tracked.neptune_runs(tmp_path).values()
    found = [own for _, own in run["series"]["net/h"]]
    assert [list(own.counts.values) for own in found] == counts()
    assert [list(own.bin_edges) for own in found] == [EDGES] * 2


def test_the_store_has_what_was_logged(tmp_path):
    logger = loggers.SaveLogger(tmp_path / "results")
    logger.finish(logged(logger))
    logs = lox.load(tmp_path / "results")
    assert isinstance(logs["net"]["h"], lox.Histogram)
    assert logs["net"]["h"].counts.tolist() == counts()
    assert logs["net"]["h"].edges.tolist() == [EDGES] * 2
    assert logs["net"]["h"].nonfinite.tolist() == [1, 0]
    assert logs["net"]["h"].merged().counts.tolist() == np.sum(counts(), 0).tolist()
    assert logs["picture"].dtype == np.uint8
    assert np.array_equal(logs["picture"].reshape(PICTURE.shape), PICTURE)
    assert np.array_equal(logs["video"].reshape(VIDEO.shape), VIDEO)


def test_a_kind_that_does_not_exist_is_named(tmp_path):
    with raises(ValueError, "'frame' is 'film'", "'image', 'video', 'histogram'"):
        loggers.TensorBoardLogger(tmp_path, kinds={"frame": "film"})


def test_bins_are_joined_for_trackers_that_take_few():
    counts, edges = np.arange(10), np.arange(11.0)
    fewer = Histogram(counts, edges).with_at_most(4)
    assert fewer.counts.tolist() == [0 + 1 + 2, 3 + 4 + 5, 6 + 7 + 8, 9]
    assert fewer.edges.tolist() == [0, 3, 6, 9, 10]

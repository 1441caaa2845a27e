"""Values made by `frozen` are like those of a frozen dataclass."""

import dataclasses
import pickle

import pytest

from lox_host.frozen import frozen


@frozen
class Point:
    x: int
    y: float = 0.0
    note: str = dataclasses.field(default="", compare=False)
    hidden: list = dataclasses.field(default_factory=list, hash=False, repr=False)


@frozen
class Named(Point):
    _: dataclasses.KW_ONLY
    name: str

    def __repr__(self) -> str:
        return self.name


@frozen
class Empty:
    pass


@dataclasses.dataclass(frozen=True)
class Other:
    x: int
    y: float = 0.0
    note: str = dataclasses.field(default="", compare=False)
    hidden: list = dataclasses.field(default_factory=list, hash=False, repr=False)


def test_equality_and_hash_follow_the_fields():
    assert Point(1, note="a") == Point(1, note="b")
    assert hash(Point(1, note="a", hidden=[1])) == hash(Point(1, note="b"))
    assert Point(1) != Point(2)
    assert Point(1) != Point(1, hidden=[1])
    assert Point(1) != Other(1)
    assert hash(Point(1)) == hash(Other(1))
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())


def test_it_prints_like_a_dataclass_unless_the_class_knows_better():
    assert repr(Point(1, note="a")) == repr(Other(1, note="a")).replace("Other", "Point")
    assert repr(Named(1, name="origin")) == "origin"
    assert repr(Empty()) == "Empty()"


def test_a_subclass_is_never_equal_to_its_base():
    assert Named(1, name="a") != Point(1)
    assert Named(1, name="a") == Named(1, name="a")
    assert Named(1, name="a") != Named(1, name="b")
    with pytest.raises(TypeError, match="positional"):
        Named(1, 0.0, "", [], "a")  # pyright: ignore[reportCallIssue]


def test_it_is_a_dataclass_and_can_be_pickled():
    assert dataclasses.replace(Point(1), y=2.0) == Point(1, 2.0)
    assert pickle.loads(pickle.dumps(Point(1, 2.0))) == Point(1, 2.0)
    assert [field.name for field in dataclasses.fields(Point)][:2] == ["x", "y"]

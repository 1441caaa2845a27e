"""Which columns of a table fit into a width."""

from lox_host.display.columns import Column, fit, room


def columns(name):
    return [
        Column("RUN", ["short", name]),
        Column("STATE", ["ended", "ended"], rank=1),
        Column("loss", ["0.5", "0.25"], numbers=True, rank=2),
        Column("lr", ["0.1", "0.2"], rank=3),
        Column("ROWS", ["10", "10"], right=True, rank=9),
    ]


def test_one_long_name_does_not_cost_a_table_its_columns():
    shown = fit(columns("x" * 500), 80)
    assert [column.head for column in shown] == ["RUN", "STATE", "loss", "lr"]
    assert room(shown, 80) == 0
    first, last = shown[0].cells
    assert first == "short"
    assert len(last) == shown[0].width == 62


def test_a_name_is_whole_if_columns_of_high_rank_can_go_instead():
    name = "x" * 58
    shown = fit(columns(name), 80)
    assert [column.head for column in shown] == ["RUN", "STATE", "loss", "lr"]
    assert shown[0].cells[1] == name


def test_where_there_is_little_room_columns_go_before_names_are_unreadable():
    shown = fit(columns("x" * 500), 30)
    assert [column.head for column in shown] == ["RUN"]
    assert shown[0].width == 30

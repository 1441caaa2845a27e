"""Find the line of the user's code that an equation comes from, and its name scopes."""

import dataclasses
import linecache
import pathlib
import sysconfig
from collections.abc import Sequence

from lox._inside.nan.program_map import EqnPath, ProgramMap
from lox._jax import tracing
from lox._jax.extend import JaxprEqn
from lox._jax.name_scopes import Level, levels_of

_LIBRARIES = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
# Scopes that JAX adds, which the user has not named.
_OF_JAX = {"rematted_computation", "checkpoint", "remat"}


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of code.

    Attributes:
        file: The path of the file.
        number: The number of the line.
        function: The function that it is in.
    """

    file: str
    number: int
    function: str

    @property
    def source(self) -> str:
        """The code. Empty if the file cannot be read."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        return f"{pathlib.Path(self.file).name}:{self.number}"


def lines_of(program_map: ProgramMap, path: EqnPath, eqn: JaxprEqn) -> list[Line]:
    """Return the lines that made an equation, the innermost first.

    Equations of JAX's own functions have no line. For these, return the lines that call
    the function.
    """
    for caller in (eqn, *(program_map.eqn(number) for number in reversed(path))):
        frames = tracing.user_frames(caller)
        if frames:
            return [Line(*frame) for frame in frames]
    return []


def is_library(line: Line) -> bool:
    """Return whether a line belongs to an installed package."""
    return line.file.startswith(_LIBRARIES)


def is_ignored(
    program_map: ProgramMap, path: EqnPath, eqn: JaxprEqn, ignored: Sequence[str]
) -> bool:
    """Return whether one of the lines that made an equation is in a list."""
    for line in lines_of(program_map, path, eqn):
        name = f"{line.file}:{line.number}"
        if any(name == end or name.endswith("/" + end) for end in ignored):
            return True
    return False


def scope_of(program_map: ProgramMap, path: EqnPath, eqn: JaxprEqn) -> str:
    """Return the name scopes around an equation, such as `block2/attention`."""
    names = [level.name for level in _levels(program_map, path, eqn) if level.is_scope]
    return "/".join(name for name in names if name not in _OF_JAX)


def phase_of(program_map: ProgramMap, path: EqnPath, eqn: JaxprEqn) -> str | None:
    """Return the pass of a derivative that an equation belongs to, or None."""
    names = {level.name for level in _levels(program_map, path, eqn)}
    if "rematted_computation" in names:
        return "recomputed for the backward pass"
    if "transpose" in names:
        return "backward pass"
    return "forward pass" if "jvp" in names else None


def _levels(program_map: ProgramMap, path: EqnPath, eqn: JaxprEqn) -> list[Level]:
    """Return the scopes around an equation, and its transformations, outermost first."""
    around = [*map(program_map.eqn, path), eqn]
    return [level for eqn in around for level in levels_of(eqn)]

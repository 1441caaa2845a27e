"""Records, the interpreter that finds them, and the rules that bring them out."""

# Each of these registers its rules or patches when it is imported.
from lox._core import derivative_hook as _derivative_hook  # noqa: F401
from lox._core.rules import (
    calls as _calls,  # noqa: F401
    cond as _cond,  # noqa: F401
    custom as _custom,  # noqa: F401
    custom_solve as _custom_solve,  # noqa: F401
    devices as _devices,  # noqa: F401
    exact_grad as _exact_grad,  # noqa: F401
    exact_vmap as _exact_vmap,  # noqa: F401
    hijax as _hijax,  # noqa: F401
    linen_scan as _linen_scan,  # noqa: F401
    loops as _loops,  # noqa: F401
    returned_records as _returned_records,  # noqa: F401
)

"""Arrays of every dtype that JAX has in dtypes that Arrow has, and back, bit by bit."""

import numpy as np

# The dtypes of NumPy that can be stored. The others are those of `ml_dtypes`, which takes a
# while to import.
_PLAIN = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    + ("float16", "float32", "float64", "complex64", "complex128")
)

# A quiet NaN of float32; the lower bits are free.
_NAN = np.uint32(0x7FC00000)


def dtype_named(name: str) -> np.dtype:
    """Return the dtype that is called `name`."""
    if name in _PLAIN:
        return np.dtype(name)
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name, name))


def is_storable(dtype: np.dtype) -> bool:
    """Return whether arrays of this dtype can be stored."""
    if dtype.name in _PLAIN:
        return True
    import ml_dtypes

    return hasattr(ml_dtypes, dtype.name)


def to_stored(array: np.ndarray) -> np.ndarray:
    """Return the array in a dtype of Arrow's; a complex number as a last axis of two."""
    if array.dtype.isbuiltin == 2:  # one of `ml_dtypes`
        return _widen(array)
    # Only where it is needed: NumPy takes int32 with a byte order of its own for another
    # dtype than int32.
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    array = np.ascontiguousarray(array)
    if array.dtype.kind != "c":
        return array
    return array.view(f"f{array.itemsize // 2}").reshape(*array.shape, 2)


def from_stored(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the array that was stored, which had this dtype."""
    if dtype.isbuiltin == 2:
        return _narrow(array, dtype)
    return array.view(dtype)[..., 0] if dtype.kind == "c" else array


def _widen(array: np.ndarray) -> np.ndarray:
    name = array.dtype.name
    if "int" in name:
        return array.astype(np.uint8 if name.startswith("uint") else np.int8)
    with np.errstate(invalid="ignore"):
        wide = array.astype(np.float32, order="C")
    # There are several NaNs, and a cast keeps one: the code goes into the free bits.
    codes = _codes(array).astype(np.uint32)
    bits = np.where(np.isnan(wide), _NAN | codes, wide.view(np.uint32))
    return bits.view(np.float32)


def _narrow(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if array.dtype.kind != "f":
        return array.astype(dtype)
    with np.errstate(invalid="ignore"):
        narrow = array.astype(dtype)
    unsigned = _codes(narrow).dtype
    codes = (array.view(np.uint32) ^ _NAN).astype(unsigned)
    return np.where(np.isnan(array), codes, _codes(narrow)).astype(unsigned).view(dtype)


def _codes(array: np.ndarray) -> np.ndarray:
    """Return the bits as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")

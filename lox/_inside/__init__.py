"""Tools to see inside a program.

watching     `lox.watch`      log what flows through layers, without log calls
nan          `lox.find_nan`   find the operation in which the first NaN appeared
black_box    `lox.recorder`   keep the last records, and deliver them if one fires
stats        `lox.stats`      describe an array by a few numbers

The first three are a public function and a handler for the interpreter of `lox._core` each.
"""

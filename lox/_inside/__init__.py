"""Tools to see inside a program, one per folder.

watching     `lox.watch`      log what flows through layers, without log calls
nan          `lox.find_nan`   find the operation in which the first NaN appeared
black_box    `lox.recorder`   keep the last records, and deliver them if one fires

Each of them is a public function, and a handler for the interpreter of `lox._core`.
"""

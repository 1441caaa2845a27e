"""What people see.

- On a terminal: `terminal` (the region that moves, with `print_above`), `progress_bar` (and
  its ETA), `run_table`. They show a `summary` of runs, `statistics` of their keys, `values`
  and other `text`.
- In pictures: `curves` of logs and `live_curves` of running programs, which `panels` draws
  and `plot_outputs` shows in a file, a notebook or a `plot_window`.
- Trends and live curves keep their rows in `downsampled_lines`, in bounded memory.
"""

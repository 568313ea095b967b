"""One module per suite. `run(options)` measures and returns `Result`s, one per table."""

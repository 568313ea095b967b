"""Settings of the process: held to the same bounds as on the command line."""

from __future__ import annotations

import pytest

REFUSED = """
    import sys, forebay
    name, value = sys.argv[1:]
    try:
        eval(value)
    except forebay.InvalidInputError as error:
        assert name in str(error), error
    else:
        raise SystemExit("accepted")
"""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FOREBAY_PART_SIZE", "100"),
        ("FOREBAY_PART_SIZE", "1TiB"),
        ("FOREBAY_BUFFER_MEMORY", "0"),
        ("FOREBAY_BUFFER_MEMORY", "lots"),
        ("FOREBAY_CONCURRENCY", "0"),
        ("FOREBAY_HUGE_PAGES", "perhaps"),
        ("FOREBAY_ENGINE", "spdk"),
        ("FOREBAY_LOG", "=="),
    ],
)
def test_variables_out_of_bounds_are_named(name: str, value: str, script: object) -> None:
    script(REFUSED, name, "forebay.Store('mem://x')", **{name: value})  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", "0"),
        ("buffer_memory", "0"),
        ("buffer_memory", "'1KiB'"),
        ("part_size", "100"),
        ("part_size", "'100'"),
        ("part_size", "'many'"),
        ("engine", "'spdk'"),
    ],
)
def test_arguments_out_of_bounds_are_refused_at_once(name: str, value: str, script: object) -> None:
    # And change nothing: the store is opened with what was there before.
    source = REFUSED + "    assert forebay.engine()['kind']\n"
    given = "engine" if name == "engine" else name
    script(source, given, f"forebay.configure({name}={value})")  # type: ignore[operator]


def test_arguments_come_before_variables(script: object) -> None:
    source = """
        import forebay
        forebay.configure(part_size="1MiB", huge_pages=False)
        upload = forebay.Store(".").upload("k")
        assert upload.part_bytes == 1 << 20, upload.part_bytes
    """
    script(source, FOREBAY_PART_SIZE="100", FOREBAY_HUGE_PAGES="perhaps")  # type: ignore[operator]


def test_the_configuration_file_is_the_command_lines(script: object) -> None:
    source = """
        import forebay
        with open("config.toml", "w") as file:
            file.write("[limits]\\npart_bytes = 1048576\\n")
        assert forebay.Store(".").upload("k").part_bytes == 8 << 20
    """
    script(source, FOREBAY_CONFIG="config.toml")  # type: ignore[operator]


def test_events_are_logged_to_stderr_when_asked(script: object) -> None:
    source = """
        import os, forebay
        store = forebay.Store("http://127.0.0.1:9/")
        try:
            store.read("k", 0, 10)
        except ConnectionError:
            pass
    """
    silent = script(source)  # type: ignore[operator]
    assert silent.stderr == ""
    told = script(source, FOREBAY_LOG="debug")  # type: ignore[operator]
    assert "forebay_store" in told.stderr
    assert "\x1b" not in told.stderr

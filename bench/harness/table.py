"""Rows as Markdown."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Unit:
    """How rates are told; rows count in GB/s and CPU seconds per GB."""

    rate: str = "GB/s"
    rate_factor: float = 1
    rate_digits: int = 2
    cpu: str = "CPU s/GB"
    cpu_factor: float = 1


BYTES = Unit()


def objects_of(size):
    """For many objects of one size."""
    return Unit("objects/s", 1e9 / size, 0, "CPU s per 10,000", size * 1e4 / 1e9)


def table(rows, reference=None, reference_name="limit", unit=BYTES):
    """A Markdown table of rates, ratios to `reference` (a row), CPU time and memory."""
    ratio = reference is not None and bool(reference.samples)
    head = ["contender", unit.rate, "min - max"]
    if ratio:
        head.append(f"of {reference_name}")
    head += [unit.cpu, "peak RSS MiB"]
    noted = any(row.note or row.failure for row in rows)
    if noted:
        head.append("note")

    def rate(value):
        return f"{value * unit.rate_factor:.{unit.rate_digits}f}"

    lines = [line(head), line(["---"] * len(head))]
    for row in rows:
        cells = [row.name]
        if row.samples:
            cells += [rate(row.rate), f"{rate(row.rate_min)} - {rate(row.rate_max)}"]
            if ratio:
                cells.append(f"{row.rate / reference.rate:.2f}")
            cells.append(f"{row.cpu_per_gb * unit.cpu_factor:.2f}")
            cells.append(f"{row.rss_bytes / MIB:.0f}" if row.rss_bytes else "-")
        else:
            cells += ["-"] * (len(head) - 1 - noted)
        if noted:
            cells.append("; ".join(filter(None, [row.note, row.failure and f"failed: {row.failure}"])))
        lines.append(line(cells))
    return "\n".join(lines)


def line(cells):
    return "| " + " | ".join(cells) + " |"

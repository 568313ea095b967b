"""Rows as Markdown."""

MIB = 1 << 20


def table(rows, reference=None, reference_name="limit", cpu_note=True):
    """A Markdown table of rates, ratios to `reference` (a row), CPU time and memory."""
    ratio = reference is not None and bool(reference.samples)
    head = ["contender", "GB/s", "min - max"]
    if ratio:
        head.append(f"of {reference_name}")
    head += ["CPU s/GB", "peak RSS MiB"]
    noted = any(row.note or row.failure for row in rows)
    if noted:
        head.append("note")
    lines = [line(head), line(["---"] * len(head))]
    for row in rows:
        cells = [row.name]
        if row.samples:
            cells += [f"{row.rate:.2f}", f"{row.rate_min:.2f} - {row.rate_max:.2f}"]
            if ratio:
                cells.append(f"{row.rate / reference.rate:.2f}")
            cells += [f"{row.cpu_per_gb:.2f}", f"{row.rss_bytes / MIB:.0f}" if row.rss_bytes else "-"]
        else:
            cells += ["-"] * (len(head) - 1 - noted)
        if noted:
            cells.append("; ".join(filter(None, [row.note, row.failure and f"failed: {row.failure}"])))
        lines.append(line(cells))
    return "\n".join(lines)


def line(cells):
    return "| " + " | ".join(cells) + " |"

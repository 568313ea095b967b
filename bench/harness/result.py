"""What a suite hands back: tables and everything behind them."""

from dataclasses import dataclass, field

from .table import BYTES, Unit, table


@dataclass
class Result:
    """One table."""

    title: str
    rows: list
    reference: object = None
    reference_name: str = "limit"
    remarks: list = field(default_factory=list)
    unit: Unit = BYTES

    def markdown(self):
        text = f"### {self.title}\n\n{table(self.rows, self.reference, self.reference_name, self.unit)}\n"
        for remark in self.remarks:
            text += f"\n{remark}\n"
        return text

    def as_json(self):
        return {
            "title": self.title,
            "reference": self.reference.name if self.reference else None,
            "rows": [row.as_json() for row in self.rows],
        }


def named(rows, name):
    """The row of that name."""
    return next(row for row in rows if row.name == name)


def fastest(rows):
    """The row with the best median among those that have one."""
    measured = [row for row in rows if row.samples]
    return max(measured, key=lambda row: row.rate) if measured else None

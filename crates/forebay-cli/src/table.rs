//! Plain text tables and times for people.

use std::time::Duration;

/// Rows of cells, printed with columns as wide as their widest cell.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// A table with these column heads; a head that begins with `>` makes its column flush right.
    pub(crate) fn new(heads: &[&str]) -> Self {
        Self {
            right: heads.iter().map(|head| head.starts_with('>')).collect(),
            rows: vec![
                heads
                    .iter()
                    .map(|head| head.trim_start_matches('>').to_owned())
                    .collect(),
            ],
        }
    }

    /// A table without heads.
    pub(crate) fn bare() -> Self {
        Self::default()
    }

    /// Add a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The lines, without trailing blanks.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        self.rows.iter().map(move |row| {
            let cells = row.iter().enumerate().map(|(column, cell)| {
                let width = widths[column];
                if self.right.get(column).copied().unwrap_or(false) {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        })
    }
}

/// A time since 1970 as `2026-11-15T02:45:00Z`.
pub(crate) fn utc(time: Duration) -> String {
    let secs = time.as_secs();
    let (year, month, day) = civil(secs / 86_400);
    let (hour, minute, second) = (secs / 3600 % 24, secs / 60 % 60, secs % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The Gregorian date of a day counted from 1970-01-01. Years are counted from March, so that the leap day ends one.
fn civil(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468;
    const DAYS_PER_ERA: u64 = 146_097;
    let days = days + DAYS_TO_1970;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", ">size"]);
        table.row(["a", "10"]);
        table.row(["long name", "1"]);
        let lines: Vec<String> = table.lines().collect();
        assert_eq!(lines, ["name       size", "a            10", "long name     1"]);
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(Duration::from_secs(secs)), text);
        }
    }
}

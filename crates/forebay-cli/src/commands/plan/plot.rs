//! A curve in a terminal: braille dots where people look, plain ASCII in files and pipes.
//!
//! Points are mapped to a grid of dots and joined by straight lines; a braille character holds 2 x 4 dots, an ASCII one a single dot. The
//! horizontal axis has equal factors where the points were chosen that way, equal steps otherwise; the vertical one has equal steps from the lowest
//! to the highest value, both of which are written at its ends.

use forebay_plan::Series;

/// Characters of the area the curve is drawn in: with labels it fits into 80 columns.
const PLOT_COLUMNS: usize = 60;
const PLOT_ROWS: usize = 12;

/// First of the 256 braille characters, in the order of their dots as bits.
const BRAILLE: u32 = 0x2800;

/// Bit of the dot in each row and column of a braille character.
const BRAILLE_BITS: [[u32; 2]; 4] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];

/// Characters a plot is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// Braille dots and lines.
    Unicode,
    /// Stars, dots and dashes.
    Ascii,
}

impl Style {
    /// Dots of a character: columns and rows.
    const fn dots(self) -> (usize, usize) {
        match self {
            Self::Unicode => (2, 4),
            Self::Ascii => (1, 1),
        }
    }
}

/// A range of numbers on a line of dots.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
    dots: usize,
    is_log: bool,
}

impl Axis {
    /// Over all values; equal factors where the middle value says so.
    fn over(values: &[f64], dots: usize, may_be_log: bool) -> Self {
        let from = values.iter().copied().fold(f64::INFINITY, f64::min);
        let to = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let count = values.len();
        // Where the middle value would be, if the values were chosen in equal steps or in equal factors.
        let middle = values.get(count / 2).copied().unwrap_or(from);
        let part = (count / 2) as f64 / count.saturating_sub(1).max(1) as f64;
        let (step, factor) = (from + (to - from) * part, from * (to / from).powf(part));
        let is_log = may_be_log && from > 0.0 && count > 2 && (middle - factor).abs() < (middle - step).abs();
        Self {
            from,
            to,
            dots,
            is_log,
        }
    }

    /// The dot of a value; the middle where all values are the same.
    fn dot(&self, value: f64) -> usize {
        let part = if self.is_log {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        let part = if part.is_finite() {
            part.clamp(0.0, 1.0)
        } else {
            0.5
        };
        (part * (self.dots - 1) as f64).round() as usize
    }
}

/// What a dot shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dot {
    Empty,
    Line,
    Point,
}

/// The lines of a plot.
pub(super) fn draw(series: &Series, style: Style) -> Vec<String> {
    if series.points.is_empty() {
        return Vec::new();
    }
    let (across, down) = style.dots();
    let (xs, ys): (Vec<f64>, Vec<f64>) = series.points.iter().map(|point| (point[0], point[1])).unzip();
    let x = Axis::over(&xs, PLOT_COLUMNS * across, true);
    let y = Axis::over(&ys, PLOT_ROWS * down, false);
    // Row 0 is at the top.
    let place = |point: &[f64; 2]| (x.dot(point[0]), y.dots - 1 - y.dot(point[1]));
    let mut grid = vec![vec![Dot::Empty; x.dots]; y.dots];
    for pair in series.points.windows(2) {
        join(&mut grid, place(&pair[0]), place(&pair[1]));
    }
    for point in &series.points {
        let (column, row) = place(point);
        grid[row][column] = Dot::Point;
    }
    let mut rows = characters(&grid, style);
    if let Some((column, row)) = series.mark.as_ref().map(place) {
        rows[row / down][column / across] = match style {
            Style::Unicode => '\u{25c6}',
            Style::Ascii => 'o',
        };
    }
    framed(series, &x, &y, &rows, style)
}

/// A straight line of dots.
fn join(grid: &mut [Vec<Dot>], from: (usize, usize), to: (usize, usize)) {
    let steps = from.0.abs_diff(to.0).max(from.1.abs_diff(to.1)).max(1);
    let between = |from: usize, to: usize, step: usize| {
        let part = step as f64 / steps as f64;
        (from as f64 + (to as f64 - from as f64) * part).round() as usize
    };
    for step in 0..=steps {
        grid[between(from.1, to.1, step)][between(from.0, to.0, step)] = Dot::Line;
    }
}

/// Dots as characters, row by row.
fn characters(grid: &[Vec<Dot>], style: Style) -> Vec<Vec<char>> {
    let (across, down) = style.dots();
    let character = |row: usize, column: usize| match style {
        Style::Ascii => match grid[row][column] {
            Dot::Empty => ' ',
            Dot::Line => '.',
            Dot::Point => '*',
        },
        Style::Unicode => {
            let mut bits = 0;
            for (dot_row, row_bits) in BRAILLE_BITS.iter().enumerate() {
                for (dot_column, bit) in row_bits.iter().enumerate() {
                    if grid[row * down + dot_row][column * across + dot_column] != Dot::Empty {
                        bits |= bit;
                    }
                }
            }
            char::from_u32(BRAILLE + bits).filter(|_| bits > 0).unwrap_or(' ')
        }
    };
    (0..PLOT_ROWS)
        .map(|row| (0..PLOT_COLUMNS).map(|column| character(row, column)).collect())
        .collect()
}

/// With axes, labels and a caption.
fn framed(series: &Series, x: &Axis, y: &Axis, rows: &[Vec<char>], style: Style) -> Vec<String> {
    let show = |value: f64| series.y_unit.show(value).text;
    let label = |row: usize| match row {
        _ if y.from >= y.to => (row == (PLOT_ROWS - 1) / 2).then(|| show(y.to)),
        0 => Some(show(y.to)),
        row if row == PLOT_ROWS - 1 => Some(show(y.from)),
        _ => None,
    };
    let width = show(y.to).chars().count().max(show(y.from).chars().count());
    let (side, corner, floor) = match style {
        Style::Unicode => ('\u{2502}', '\u{2514}', "\u{2500}"),
        Style::Ascii => ('|', '+', "-"),
    };
    let how = if x.is_log { ", in equal factors" } else { "" };
    let mut lines = vec![format!(
        "{:width$}  {} by {}{how}",
        "", series.y_name, series.x_name
    )];
    for (row, characters) in rows.iter().enumerate() {
        let text: String = characters.iter().collect();
        let label = label(row).unwrap_or_default();
        lines.push(format!("{label:>width$} {side}{text}").trim_end().to_owned());
    }
    lines.push(format!("{:width$} {corner}{}", "", floor.repeat(PLOT_COLUMNS)));
    let (from, to) = (series.x_unit.show(x.from).text, series.x_unit.show(x.to).text);
    let room = PLOT_COLUMNS.saturating_sub(from.chars().count());
    lines.push(format!("{:width$}  {from}{to:>room$}", ""));
    if let Some([at, value]) = series.mark {
        let at = series.x_unit.show(at).text;
        let mark = if style == Style::Ascii { "o" } else { "\u{25c6}" };
        lines.push(format!(
            "{:width$}  {mark} {} {at}, {} {}",
            "",
            series.x_name,
            series.y_name,
            show(value)
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use forebay_plan::quantity::Unit;

    use super::*;

    fn series(points: Vec<[f64; 2]>) -> Series {
        Series {
            name: "goodput_by_gpus".to_owned(),
            x_name: "gpus".to_owned(),
            x_unit: Unit::Count,
            y_name: "goodput".to_owned(),
            y_unit: Unit::Ratio,
            points,
            mark: None,
        }
    }

    #[test]
    fn a_rising_line_goes_from_corner_to_corner() {
        for style in [Style::Ascii, Style::Unicode] {
            let lines = draw(&series(vec![[0.0, 0.0], [5.0, 0.5], [10.0, 1.0]]), style);
            assert_eq!(lines.len(), PLOT_ROWS + 3);
            assert!(lines[1].starts_with("100 % ") && lines[PLOT_ROWS].starts_with("  0 % "));
            assert_eq!(lines[1].chars().count(), "100 % |".len() + PLOT_COLUMNS);
            let first = lines[PLOT_ROWS].chars().nth("100 % |".len());
            assert!(first.is_some_and(|dot| dot != ' '), "{lines:#?}");
            assert_eq!(lines.iter().all(|line| line.is_ascii()), style == Style::Ascii);
        }
    }

    #[test]
    fn factors_are_recognised_and_steps_are_not() {
        let axis = |values: &[f64]| Axis::over(values, 100, true).is_log;
        assert!(axis(&[1.0, 10.0, 100.0]) && axis(&[1.0, 10.0, 100.0, 1000.0]));
        assert!(!axis(&[0.0, 50.0, 100.0]) && !axis(&[1.0, 50.0, 100.0]) && !axis(&[1.0, 100.0]));
    }

    #[test]
    fn a_flat_line_and_a_single_point_are_drawn() {
        for points in [vec![[1.0, 0.5]], vec![[1.0, 0.5], [2.0, 0.5]], Vec::new()] {
            let lines = draw(&series(points.clone()), Style::Ascii);
            assert_eq!(lines.iter().any(|line| line.contains('*')), !points.is_empty());
        }
        let marked = Series {
            mark: Some([1.0, 0.5]),
            ..series(vec![[1.0, 0.5], [2.0, 0.7]])
        };
        let lines = draw(&marked, Style::Ascii);
        assert!(
            lines
                .last()
                .is_some_and(|line| line.contains("o gpus 1, goodput 50 %"))
        );
    }
}

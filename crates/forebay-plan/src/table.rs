//! A table of text and the forms it is printed in: aligned columns, CSV, Markdown.
//!
//! The strings are made here so that the command line, the web interface and the tests give the same ones; printing them
//! is the business of the faces.

use serde::Serialize;

/// Columns and rows of text; each row has as many cells as there are columns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The cells, row by row.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.columns).chain(&self.rows)
    }

    /// Columns padded with spaces to the same width.
    pub fn to_text(&self) -> String {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.lines().filter_map(|line| line.get(column));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        let mut text = String::new();
        for line in self.lines() {
            let cells: Vec<String> = line
                .iter()
                .zip(&widths)
                .map(|(cell, width)| format!("{cell:<width$}"))
                .collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// Comma-separated values as in RFC 4180, with quotes where needed.
    pub fn to_csv(&self) -> String {
        let quote = |cell: &String| {
            if cell.contains(['"', ',', '\n', '\r']) {
                format!("\"{}\"", cell.replace('"', "\"\""))
            } else {
                cell.clone()
            }
        };
        let line = |line: &Vec<String>| line.iter().map(quote).collect::<Vec<_>>().join(",") + "\r\n";
        self.lines().map(line).collect()
    }

    /// A Markdown table.
    pub fn to_markdown(&self) -> String {
        let escape = |cell: &String| cell.replace('|', "\\|").replace(['\n', '\r'], " ");
        let line = |line: &Vec<String>| {
            format!(
                "| {} |\n",
                line.iter().map(escape).collect::<Vec<_>>().join(" | ")
            )
        };
        let rule = format!("|{}\n", "---|".repeat(self.columns.len()));
        let body: String = self.rows.iter().map(line).collect();
        line(&self.columns) + &rule + &body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_forms() {
        let table = Table {
            columns: vec!["a".into(), "b".into()],
            rows: vec![
                vec!["1".into(), "x, \"y\"".into()],
                vec!["20".into(), "p|q".into()],
            ],
        };
        assert_eq!(table.to_text(), "a   b\n1   x, \"y\"\n20  p|q\n");
        assert_eq!(table.to_csv(), "a,b\r\n1,\"x, \"\"y\"\"\"\r\n20,p|q\r\n");
        assert_eq!(
            table.to_markdown(),
            "| a | b |\n|---|---|\n| 1 | x, \"y\" |\n| 20 | p\\|q |\n"
        );
    }
}

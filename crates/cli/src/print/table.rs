//! Rows in columns: aligned on a terminal, separated by tabs in a pipe.

use std::io;

use anstyle::Style;

use super::{BOLD, Printer, text};

/// A table under construction.
pub(crate) struct Table {
    header: Vec<&'static str>,
    rows: Vec<Vec<(String, Style)>>,
}

impl Table {
    pub(crate) fn new(header: &[&'static str]) -> Self {
        Table { header: header.to_vec(), rows: Vec::new() }
    }

    /// Adds a row: each cell with its style. The text is made safe to show.
    pub(crate) fn row(&mut self, cells: Vec<(String, Style)>) {
        debug_assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells.into_iter().map(|(text, style)| (text::clean(&text).into_owned(), style)).collect());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints it. On a terminal the last column is cut to fit: it is the one that can be long.
    pub(crate) fn print(&self, printer: &Printer) -> io::Result<()> {
        let header = self.header.iter().map(|title| ((*title).to_owned(), BOLD)).collect();
        let rows: Vec<&Vec<(String, Style)>> = std::iter::once(&header).chain(&self.rows).collect();
        let width = |text: &str| text.chars().map(text::width).sum::<usize>();
        let widest = |column: usize| rows.iter().map(|row| width(&row[column].0)).max().unwrap_or(0);
        let last = self.header.len() - 1;
        let widths: Vec<usize> = (0..last).map(widest).collect();
        let room = super::line::columns(io::stdout()).saturating_sub(widths.iter().map(|width| width + GAP).sum()).max(8);
        for row in rows {
            let mut line = String::new();
            for (column, (text, style)) in row.iter().enumerate() {
                if !printer.terminal {
                    line.push_str(text);
                    line.push_str(if column == last { "" } else { "\t" });
                } else if column == last {
                    line.push_str(&printer.paint(*style, super::line::cut(text, room)));
                } else {
                    line.push_str(&printer.paint(*style, text));
                    line.extend(std::iter::repeat_n(' ', widths[column] + GAP - width(text)));
                }
            }
            printer.line(line.trim_end_matches(' '))?;
        }
        Ok(())
    }
}

const GAP: usize = 2;

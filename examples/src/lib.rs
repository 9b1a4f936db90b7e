//! Shared code of the examples: the table that each example prints, the consumer of the queue examples, and a local AWS
//! Lambda. The programs are in `src/bin`.

pub mod lambda;
pub mod queue;

/// Text table that is printed line by line as the program runs.
#[derive(Debug)]
pub struct Table<const N: usize> {
    widths: [usize; N],
}

impl<const N: usize> Table<N> {
    /// Creates a table with these columns and widths, and prints its head.
    pub fn new(columns: [(&str, usize); N]) -> Self {
        let widths = columns.map(|(_, width)| width);
        let table = Self { widths };
        table.line(columns.map(|(name, _)| name));
        let rules = widths.map(|width| "─".repeat(width));
        table.line(rules.each_ref().map(String::as_str));
        table
    }

    /// Prints a line. Numbers are right-aligned.
    pub fn line(&self, cells: [&str; N]) {
        let cells: Vec<String> = cells
            .iter()
            .zip(self.widths)
            .map(|(cell, width)| match cell.parse::<u64>() {
                Ok(number) => format!("{number:>width$}"),
                Err(_) => format!("{cell:<width$}"),
            })
            .collect();
        println!("{}", cells.join("  ").trim_end());
    }
}

//! The table that the stories are told in, and what the stories of queues share. The rest of what is worth reading is in
//! `src/bin`.

#[cfg(any(feature = "rabbitmq", feature = "nats", feature = "kafka"))]
pub mod queue;

/// A table that is printed line by line, while it happens.
#[derive(Debug)]
pub struct Table<const N: usize> {
    widths: [usize; N],
}

impl<const N: usize> Table<N> {
    /// A table with these columns, each as wide as its longest cell.
    pub fn new(columns: [(&str, usize); N]) -> Self {
        let widths = columns.map(|(_, width)| width);
        let table = Self { widths };
        table.line(columns.map(|(name, _)| name));
        let rules = widths.map(|width| "─".repeat(width));
        table.line(rules.each_ref().map(String::as_str));
        table
    }

    /// Prints a line; numbers stand at the right.
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

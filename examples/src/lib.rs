//! The table that the stories are told in. What is worth reading is in `src/bin`.

/// A table that is printed line by line, while it happens.
#[derive(Debug)]
pub struct Table<const N: usize> {
    widths: [usize; N],
}

impl<const N: usize> Table<N> {
    /// A table with these columns, each as wide as its longest cell.
    pub fn new(columns: [(&str, usize); N]) -> Self {
        let table = Self {
            widths: columns.map(|(_, width)| width),
        };
        table.print(columns.map(|(name, _)| name.to_owned()));
        let rules = table.widths.map(|width| "─".repeat(width));
        table.print(rules);
        table
    }

    /// Prints a line.
    pub fn line(&self, cells: [&str; N]) {
        self.print(cells.map(str::to_owned));
    }

    fn print(&self, cells: [String; N]) {
        let line: Vec<String> = cells
            .iter()
            .zip(self.widths)
            .map(|(cell, width)| match cell.parse::<u64>() {
                Ok(number) => format!("{number:>width$}"),
                Err(_) => format!("{cell:<width$}"),
            })
            .collect();
        println!("{}", line.join("  ").trim_end());
    }
}

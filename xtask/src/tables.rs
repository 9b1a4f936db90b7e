//! `cargo xtask tables`: writes tables into pages, from the files that tests and benchmarks write.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};

const END: &str = "<!-- End of the table. -->\n";

/// A table between markers of a page.
#[derive(Debug)]
pub(crate) struct Table {
    /// Name in its marker.
    pub(crate) name: String,
    /// File that its figures come from, from the root of the repository.
    pub(crate) source: String,
    /// Page that contains it, from the root of the repository.
    pub(crate) page: String,
    pub(crate) text: String,
}

impl Table {
    /// Replaces the table in the text of its page.
    fn replaced(&self, page: &str) -> anyhow::Result<String> {
        let Self { name, source, .. } = self;
        let begin = format!("<!-- Written by `cargo xtask tables` from {source}: {name}. -->\n");
        let parts = page.split_once(&begin).and_then(|(before, rest)| {
            let (_, after) = rest.split_once(END)?;
            Some((before, after))
        });
        let (before, after) = parts.with_context(|| {
            format!(
                "{} has no markers of the table `{name}`; add\n{begin}{END}",
                self.page
            )
        })?;
        Ok(format!("{before}{begin}{}{END}{after}", self.text))
    }
}

/// Writes every table into its page, or only checks that the pages have them.
///
/// # Errors
///
/// A page cannot be read or written, it has no markers, or a checked page has another table.
pub(crate) fn write(root: &Path, tables: &[Table], checks: bool) -> anyhow::Result<()> {
    let mut stale = Vec::new();
    for table in tables {
        let (page, path) = (&table.page, root.join(&table.page));
        let old = fs::read_to_string(&path).with_context(|| format!("cannot read {page}"))?;
        let new = table.replaced(&old)?;
        if old == new {
            continue;
        }
        if checks {
            stale.push(format!("`{}` in {page}", table.name));
        } else {
            fs::write(&path, new).with_context(|| format!("cannot write {page}"))?;
        }
    }
    let stale = stale.join(", ");
    ensure!(
        stale.is_empty(),
        "tables differ from their sources: {stale}; run `cargo xtask tables`"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_stands_between_its_markers() {
        let table = Table {
            name: "load".to_owned(),
            source: "a.json".to_owned(),
            page: "b.md".to_owned(),
            text: "new\n".to_owned(),
        };
        let begin = "<!-- Written by `cargo xtask tables` from a.json: load. -->\n";
        let page = format!("before\n{begin}old\n{END}after\n{END}");
        let page = table.replaced(&page).expect("the page has the markers");
        assert_eq!(page, format!("before\n{begin}new\n{END}after\n{END}"));
        assert_eq!(table.replaced(&page).expect("it still has them"), page);
        let error = table.replaced(&page.replace("load", "calls")).unwrap_err();
        let expected = format!("b.md has no markers of the table `load`; add\n{begin}{END}");
        assert_eq!(error.to_string(), expected);
    }
}

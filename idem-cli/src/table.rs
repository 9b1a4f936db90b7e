//! Tables that fit a terminal, with whole words.

use unicode_width::UnicodeWidthStr as _;

/// Blanks between two columns.
const GAP: usize = 2;

/// A table in columns. If it does not fit the width, cells are broken between words; if a word does not fit either, each row is
/// a list of its cells. Without a width, no cell is broken. The cells must be safe to print, see [`shown`](crate::output::shown).
pub(crate) fn table_of_width<const N: usize>(
    width: Option<usize>,
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let rows: Vec<[String; N]> = rows.collect();
    let mut lines = vec![header.map(str::to_owned)];
    lines.extend(rows.iter().cloned());
    let widest = |of: fn(&str) -> usize| {
        let mut widths = [0; N];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = of(cell).max(*width);
            }
        }
        widths
    };
    let words = widest(|cell| cell.split(' ').map(str::width).max().unwrap_or_default());
    let mut widths = widest(str::width);
    let available = width
        .unwrap_or(usize::MAX)
        .saturating_sub(GAP * N.saturating_sub(1));
    if words.iter().sum::<usize>() > available {
        return lists(width.unwrap_or(usize::MAX), header, &rows);
    }
    while widths.iter().sum::<usize>() > available {
        // The widest column that can be narrower becomes so.
        let columns = (0..N).filter(|it| widths[*it] > words[*it]);
        let Some(column) = columns.max_by_key(|it| widths[*it]) else {
            break;
        };
        widths[column] -= 1;
    }
    let mut text = Vec::new();
    for line in &lines {
        let cells: Vec<Vec<String>> = line
            .iter()
            .zip(widths)
            .map(|(cell, width)| wrapped(cell, width))
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or_default();
        for row in 0..height {
            let mut written = String::new();
            for (cell, width) in cells.iter().zip(widths) {
                let part = cell.get(row).map_or("", String::as_str);
                written.push_str(part);
                written.push_str(&" ".repeat(width - part.width() + GAP));
            }
            text.push(written.trim_end().to_owned());
        }
    }
    text.join("\n")
}

/// Names and values below each other, in the columns of the sums of `idem stats`. A value without a name continues those above.
pub(crate) fn list_of_width(width: Option<usize>, rows: &[[String; 2]]) -> String {
    /// Width of the names.
    const NAMES: usize = 11;
    let width = width.unwrap_or(usize::MAX).saturating_sub(NAMES).max(1);
    let mut lines = Vec::new();
    for [name, value] in rows {
        for (index, part) in wrapped(value, width).iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            lines.push(format!("{name:<NAMES$}{part}"));
        }
    }
    lines.join("\n")
}

/// Rows as lists of their cells, with a line between two rows. Empty cells are left out.
fn lists<const N: usize>(width: usize, header: [&str; N], rows: &[[String; N]]) -> String {
    let names = header.iter().map(|it| it.width()).max().unwrap_or_default() + GAP;
    let mut lists = Vec::new();
    for row in rows {
        let mut list = Vec::new();
        for (name, cell) in header.iter().zip(row) {
            let parts = wrapped(cell, width.saturating_sub(names).max(1));
            for (index, part) in parts.iter().filter(|it| !it.is_empty()).enumerate() {
                let name = if index == 0 { *name } else { "" };
                let blanks = " ".repeat(names - name.width());
                list.push(format!("{name}{blanks}{part}"));
            }
        }
        lists.push(list.join("\n"));
    }
    lists.join("\n\n")
}

/// The text in lines of this width. A word that is wider is cut.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for (index, word) in text.split(' ').enumerate() {
        let line = &lines[lines.len() - 1];
        if index > 0 && line.width() + 1 + word.width() > width {
            lines.push(String::new());
        } else if index > 0 {
            let last = lines.len() - 1;
            lines[last].push(' ');
        }
        for character in word.chars() {
            let mut bytes = [0; 4];
            let character: &str = character.encode_utf8(&mut bytes);
            let last = lines.len() - 1;
            if !lines[last].is_empty() && lines[last].width() + character.width() > width {
                lines.push(String::new());
            }
            let last = lines.len() - 1;
            lines[last].push_str(character);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_fit_the_terminal() {
        let rows = || [["a".repeat(50), "数".repeat(20), "c d".to_owned()]].into_iter();
        let header = ["FIRST", "SECOND", "THIRD"];
        let unlimited = table_of_width(None, header, rows());
        assert_eq!(unlimited.lines().count(), 2, "{unlimited}");
        for width in [30, 60, 100] {
            let narrow = table_of_width(Some(width), header, rows());
            let letters = |letter| narrow.matches(letter).count();
            assert_eq!((letters('a'), letters('数')), (50, 20), "{narrow}");
            for line in narrow.lines() {
                assert!(line.width() <= width, "{narrow}");
            }
        }
    }

    #[test]
    fn cells_are_broken_between_words() {
        let rows = || [["one two three".to_owned(), "running, lapsed".to_owned()]].into_iter();
        let table = table_of_width(Some(20), ["A", "STATE"], rows());
        assert_eq!(
            table,
            "A          STATE\none two    running,\nthree      lapsed"
        );
        let lists = table_of_width(Some(10), ["A", "STATE"], rows());
        assert_eq!(
            lists,
            "A      one\n       two\n       thr\n       ee\nSTATE  run\n       nin\n       g,\n       lap\n       sed"
        );
    }
}

//! Texts of statements, from files of SQL.
//!
//! A file has sections. The line `-- name: claim` begins the statement of that name, and `-- part: expired` begins a
//! part that statements share. Comments are for the reader, and are not sent to the server.
//!
//! A marker is a name in braces. `{expired}` stands for the part of that name, or for a value such as the name of a
//! table. `{expired:r.}` gives the part an argument, which takes the place of `{it}` in the part and in the parts that
//! it contains.
//!
//! One file has all statements on a table, because they share the parts, and their comments refer to each other.

use std::collections::HashMap;

use crate::store::sql::{Placeholders, Statement};

/// Parts and values that take the place of markers.
#[derive(Debug)]
pub(in crate::store) struct Template {
    placeholders: Placeholders,
    parts: HashMap<&'static str, String>,
    /// Text before each statement, except those that begin with the marker of an opening of their own.
    opening: Option<Opening>,
}

#[derive(Debug, Clone, Copy)]
struct Opening {
    text: &'static str,
    unless: &'static str,
}

impl Template {
    pub(in crate::store) fn new(placeholders: Placeholders) -> Self {
        Self {
            placeholders,
            parts: HashMap::new(),
            opening: None,
        }
    }

    /// Begins each statement with this text, except those that begin with the marker `unless`.
    #[cfg(feature = "mysql")]
    pub(in crate::store) fn opened_by(mut self, text: &'static str, unless: &'static str) -> Self {
        self.opening = Some(Opening { text, unless });
        self
    }

    /// Adds the parts of a file.
    pub(in crate::store) fn with_parts(mut self, file: &'static str) -> Self {
        for section in file.split("\n-- part: ").skip(1) {
            let (name, text) = section.split_once('\n').unwrap_or((section, ""));
            let text = text.split("\n-- name: ").next().unwrap_or_default();
            self.parts.insert(name, one_line(text));
        }
        self
    }

    /// Adds a value. It may contain markers.
    pub(in crate::store) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.parts.insert(name, value.into());
        self
    }

    /// Fills the markers of a statement. A marker without a part stays.
    pub(in crate::store) fn statement(&self, text: &str) -> Statement {
        let mut filled = String::with_capacity(2 * text.len());
        let text = one_line(text);
        if let Some(opening) = self.opening
            && !text.starts_with(opening.unless)
        {
            filled.push_str(opening.text);
        }
        self.fill(&text, "", &mut filled);
        Statement::new(&filled, self.placeholders)
    }

    fn fill(&self, text: &str, argument: &str, filled: &mut String) {
        let mut pieces = text.split('{');
        filled.extend(pieces.next());
        for piece in pieces {
            let (marker, rest) = piece.split_once('}').unwrap_or((piece, ""));
            let (name, argument) = marker.split_once(':').unwrap_or((marker, argument));
            match self.parts.get(name) {
                _ if name == "it" => filled.push_str(argument),
                Some(part) => self.fill(part, argument, filled),
                None => filled.extend(["{", marker, "}"]),
            }
            filled.push_str(rest);
        }
    }
}

/// Joins the lines of a text, without those that are comments. No quoted text of the files spans lines.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    lines.collect::<Vec<_>>().join(" ")
}

/// Text of the statement with this name in a file. For constants: the compiler then refuses a name that the file does
/// not have.
pub(in crate::store) const fn statement_in(file: &'static str, name: &str) -> &'static str {
    const HEADER: &[u8] = b"-- name: ";
    let text = file.as_bytes();
    let mut line = 0;
    while line < text.len() {
        let begin = next_line(text, line);
        let at = line + HEADER.len();
        if has(text, line, HEADER) && has(text, at, name.as_bytes()) && at + name.len() + 1 == begin
        {
            let mut end = begin;
            while end < text.len() && !has(text, end, HEADER) && !has(text, end, b"-- part: ") {
                end = next_line(text, end);
            }
            return file.split_at(end).0.split_at(begin).1;
        }
        line = begin;
    }
    panic!("the file has no statement of this name")
}

/// Returns true if the text has this piece at a position.
const fn has(text: &[u8], at: usize, piece: &[u8]) -> bool {
    let mut length = 0;
    while length < piece.len() {
        if at + length >= text.len() || text[at + length] != piece[length] {
            return false;
        }
        length += 1;
    }
    true
}

/// Position after the end of a line, which each line of a file has.
const fn next_line(text: &[u8], mut at: usize) -> usize {
    while at < text.len() && text[at] != b'\n' {
        at += 1;
    }
    at + 1
}

/// Declares a type with the statements of a file, each in the field of its name, beside fields with other values.
macro_rules! declare_statements {
    (
        $(#[$about:meta])*
        $visible:vis struct $name:ident {
            $($(#[$about_value:meta])* $value_visible:vis $value:ident: $type:ty,)*
        }
        from $file:literal {
            $($(#[$about_statement:meta])* $statement:ident,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Debug)]
        $visible struct $name {
            $($(#[$about_value])* $value_visible $value: $type,)*
            $($(#[$about_statement])* pub(in crate::store) $statement: $crate::store::sql::Statement,)*
        }

        impl $name {
            /// Text of the file.
            pub(in crate::store) const FILE: &'static str = include_str!($file);

            /// Fills the markers of the statements.
            fn from_template(template: &$crate::store::sql::Template $(, $value: $type)*) -> Self {
                Self {
                    $($value,)*
                    $($statement: template.statement(const {
                        $crate::store::sql::statement_in(Self::FILE, stringify!($statement))
                    }),)*
                }
            }

            /// Statements with their names.
            #[cfg(test)]
            pub(in crate::store) fn each(&self) -> Vec<(&'static str, &$crate::store::sql::Statement)> {
                vec![$((stringify!($statement), &self.$statement),)*]
            }
        }
    };
}
pub(in crate::store) use declare_statements;

/// Checks that the file has these statements and no others, that each opens with a comment, and that no marker is left
/// in them.
#[cfg(test)]
pub(in crate::store) fn check_statements(file: &str, statements: &[(&str, &Statement)]) {
    let mut names = Vec::new();
    for section in file.split("\n-- name: ").skip(1) {
        let (name, text) = section.split_once('\n').unwrap();
        let opens_with_a_comment = text
            .strip_prefix("-- ")
            .is_some_and(|it| !it.trim().is_empty());
        assert!(opens_with_a_comment, "say why `{name}` is as it is");
        names.push(name);
    }
    let declared: Vec<_> = statements.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, declared);
    for (name, statement) in statements {
        let text = statement.as_str();
        assert!(!text.contains(['{', '}']), "`{name}` has a marker: {text}");
        assert!(!text.contains("--"), "`{name}` has a comment: {text}");
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    const FILE: &str = "\
-- Statements.

-- part: open
-- Not closed.
{it}closed_at > {now}

-- part: mine
{it}owner = ?1 AND {open}

-- name: read
-- Why?
SELECT a, '{newline}' FROM {table} AS t
-- Why not?
WHERE {mine:t.}

-- name: read_all
-- As above.
SELECT a FROM {table}
WHERE {open} AND b IN ({list})
";

    #[test]
    fn markers_are_filled_and_comments_left_out() {
        let template = Template::new(Placeholders::Numbered('$'))
            .with_parts(FILE)
            .with("table", "\"x\"")
            .with("newline", "\n")
            .with("now", "7");
        let text = |statement: Statement| statement.as_str().to_owned();
        assert_eq!(
            text(template.statement(const { statement_in(FILE, "read") })),
            "SELECT a, '\n' FROM \"x\" AS t WHERE t.owner = $1 AND t.closed_at > 7"
        );
        assert_eq!(
            text(template.statement(const { statement_in(FILE, "read_all") })),
            "SELECT a FROM \"x\" WHERE closed_at > 7 AND b IN ({list})"
        );
    }

    #[test]
    #[should_panic(expected = "no statement of this name")]
    fn a_name_that_the_file_does_not_have_is_refused() {
        statement_in(FILE, "read_al");
    }

    /// Files below this folder whose names end like this.
    fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(files(&path, end));
            } else if path.to_str().unwrap().ends_with(end) {
                found.push(path);
            }
        }
        found
    }

    #[test]
    fn every_file_and_every_part_is_used() {
        let stores = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
        let paths = files(&stores, ".sql");
        assert!(paths.len() > 3, "{paths:?}");
        let texts: Vec<_> = paths
            .iter()
            .map(|it| fs::read_to_string(it).unwrap())
            .collect();
        let sources: Vec<_> = files(&stores, ".rs");
        let sources = sources.iter().map(|it| fs::read_to_string(it).unwrap());
        let all = texts.concat() + &sources.collect::<String>();
        for (path, text) in paths.iter().zip(&texts) {
            let name = path.file_name().unwrap().to_str().unwrap();
            let included = files(path.parent().unwrap(), ".rs").iter().any(|source| {
                fs::read_to_string(source)
                    .unwrap()
                    .contains(&format!("\"{name}\""))
            });
            assert!(included, "no code includes {}", path.display());
            for section in text.split("\n-- part: ").skip(1) {
                let part = section.lines().next().unwrap();
                let is_used = ["}", ":"]
                    .iter()
                    .any(|end| all.contains(&format!("{{{part}{end}")));
                assert!(is_used, "nothing uses `{part}` of {}", path.display());
            }
        }
    }
}

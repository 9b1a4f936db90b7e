//! Puts all mutants of a crate into one program, of which the variable [`VARIABLE`] chooses one.
//!
//! A mutant costs a compilation otherwise, which takes longer than its tests ("mutant schemata": R. Untch, J. Offutt,
//! M. Harrold, Mutation Analysis Using Mutant Schemata, ISSTA 1993). Not every mutant has such a form: the others, and
//! those that do not compile in it, are left to cargo-mutants.

#[cfg(test)]
mod tests;
mod writer;

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::Context as _;
use proc_macro2::LineColumn;
use serde::Deserialize;

use self::writer::Writer;

/// Variable with the number of the mutant to run.
pub(super) const VARIABLE: &str = "IDEM_MUTANT";

/// Module that the root of the crate gets.
pub(super) const MODULE: &str = r#"
#[allow(warnings, clippy::all)]
mod mutation_switch {
    pub(crate) fn is_on(mutant: usize) -> bool {
        static CHOSEN: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
        *CHOSEN.get_or_init(|| std::env::var("IDEM_MUTANT").ok()?.parse().ok()) == Some(mutant)
    }
}
"#;

/// A mutant, as cargo-mutants lists it.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Mutant {
    pub(super) name: String,
    pub(super) file: String,
    span: Place,
    replacement: String,
    pub(super) genre: Genre,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub(super) enum Genre {
    FnValue,
    BinaryOperator,
    UnaryOperator,
    MatchArm,
    MatchArmGuard,
    StructField,
}

#[derive(Debug, Clone, Copy, Deserialize)]
struct Place {
    start: Position,
    end: Position,
}

/// Line and column, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Position {
    line: usize,
    column: usize,
}

impl From<LineColumn> for Position {
    fn from(LineColumn { line, column }: LineColumn) -> Self {
        Self {
            line,
            column: column + 1,
        }
    }
}

/// A file with all its mutants.
#[derive(Debug)]
pub(super) struct Switched {
    pub(super) text: String,
    /// Mutants in the text.
    pub(super) mutants: BTreeSet<usize>,
    /// Ranges of the text that belong to mutants. An error of the compiler is about those in the smallest range.
    ranges: Vec<(Range<usize>, Vec<usize>)>,
}

impl Switched {
    /// Mutants that an error at this place is about.
    pub(super) fn at(&self, place: &Range<usize>) -> &[usize] {
        let covers =
            |it: &&(Range<usize>, Vec<usize>)| it.0.start <= place.start && place.end <= it.0.end;
        let smallest = self
            .ranges
            .iter()
            .filter(covers)
            .min_by_key(|it| it.0.len());
        smallest.map_or(&[], |(_, mutants)| mutants)
    }
}

/// Writes the mutants of a file into it. `mutants` have their numbers.
pub(super) fn switched<'t>(
    text: &'t str,
    mutants: &[(usize, &'t Mutant)],
) -> anyhow::Result<Switched> {
    let file = syn::parse_file(text).context("the file cannot be parsed")?;
    Ok(Writer::new(text, mutants).switched(&file))
}

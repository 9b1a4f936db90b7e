//! The way through the pages of a list, which the position in a URL holds.

use idem_runtime::store::Cursor;

/// Number of pages to which a list leads back one by one. Beyond them it leads to its first page, so that URLs stay short.
const MAX: usize = 16;
/// Separates the positions. No cursor has it.
const SEPARATOR: char = '\n';

/// Positions at which the pages up to the shown one begin. Empty for the first page, which has no position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Trail(Vec<String>);

impl Trail {
    pub(super) fn read(text: &str) -> Self {
        Self(text.split(SEPARATOR).map(str::to_owned).collect())
    }

    pub(super) fn text(&self) -> String {
        self.0.join(&SEPARATOR.to_string())
    }

    /// Position at which the shown page begins.
    pub(super) fn position(&self) -> Option<Cursor> {
        self.0.last().map(|it| Cursor::new(it.as_str()))
    }

    pub(super) fn is_first(&self) -> bool {
        self.0.is_empty()
    }

    /// The way to the page that begins here.
    pub(super) fn next(&self, position: &Cursor) -> Self {
        let left_out = (self.0.len() + 1).saturating_sub(MAX);
        let kept = self.0.iter().skip(left_out).cloned();
        Self(kept.chain([position.as_str().to_owned()]).collect())
    }

    /// The way to the page before, unless that is the first one or too long ago.
    pub(super) fn previous(&self) -> Option<Self> {
        let (_, before) = self.0.split_last()?;
        (!before.is_empty()).then(|| Self(before.to_vec()))
    }
}

/// Sealed positions of the pages around a page of a list.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// True for the first page.
    pub(crate) is_first: bool,
    /// The page before. `None` if that is the first page, or too long ago.
    pub(crate) previous: Option<String>,
    /// The next page. `None` at the end.
    pub(crate) next: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_leads_back_and_stays_short() {
        let first = Trail::default();
        assert!(first.is_first() && first.position().is_none() && first.previous().is_none());
        let mut trail = first;
        for number in 0..40 {
            let before = trail.clone();
            trail = trail.next(&Cursor::new(number.to_string()));
            assert_eq!(Trail::read(&trail.text()), trail);
            assert_eq!(trail.position(), Some(Cursor::new(number.to_string())));
            if (1..MAX).contains(&number) {
                assert_eq!(trail.previous(), Some(before));
            }
        }
        assert_eq!(trail.0.len(), MAX);
        assert!(!trail.is_first());
    }
}

//! Labels by which operators recognise the owner of an attempt.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::error::InvalidOwnerLabel;

/// Label of the owner of an attempt, for operators: host, process id and build, for example `web-3/4711/2.1.0`.
///
/// A store keeps the label of each attempt and never interprets it. Two processes may have the same label. A label is no
/// secret: whoever may read the records may read it.
///
/// ```
/// use idem_store::record::OwnerLabel;
///
/// let label = OwnerLabel::new("web-3/4711/2.1.0")?;
/// assert_eq!(label.as_str(), "web-3/4711/2.1.0");
/// assert!(OwnerLabel::new("two\nlines").is_err());
/// # Ok::<(), idem_store::InvalidOwnerLabel>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OwnerLabel(Arc<str>);

impl OwnerLabel {
    /// Longest label, in bytes.
    pub const MAX_BYTES: usize = 120;

    /// Creates a label of 1 to 120 bytes without control characters.
    ///
    /// # Errors
    /// [`InvalidOwnerLabel`] for any other text.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidOwnerLabel> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(InvalidOwnerLabel::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(InvalidOwnerLabel::TooLong(text.len()));
        }
        if let Some((at, _)) = text.char_indices().find(|(_, it)| it.is_control()) {
            return Err(InvalidOwnerLabel::Control(at));
        }
        Ok(Self(text.into()))
    }

    /// Creates a label from any text: control characters become `?`, the text is cut after 120 bytes, and empty text
    /// becomes `?`.
    pub fn lossy(text: &str) -> Self {
        let end = text.floor_char_boundary(Self::MAX_BYTES);
        let text = text[..end].replace(|it: char| it.is_control(), "?");
        Self(if text.is_empty() { "?" } else { &text }.into())
    }

    /// Text of the label.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OwnerLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for OwnerLabel {
    type Err = InvalidOwnerLabel;

    fn from_str(text: &str) -> Result<Self, InvalidOwnerLabel> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_1_to_120_bytes_and_no_control_characters() {
        for text in [
            "a",
            "web-3/4711/2.1.0",
            &"x".repeat(120),
            &"ü".repeat(60),
            " ",
        ] {
            assert_eq!(OwnerLabel::new(text).unwrap().as_str(), text);
            assert_eq!(OwnerLabel::lossy(text).as_str(), text);
        }
        for (text, error, lossy) in [
            ("", InvalidOwnerLabel::Empty, "?"),
            (
                &*"x".repeat(121),
                InvalidOwnerLabel::TooLong(121),
                &*"x".repeat(120),
            ),
            ("a\nb", InvalidOwnerLabel::Control(1), "a?b"),
            ("ab\u{85}", InvalidOwnerLabel::Control(2), "ab?"),
        ] {
            assert_eq!(OwnerLabel::new(text), Err(error));
            assert_eq!(OwnerLabel::lossy(text).as_str(), lossy);
        }
        let cut = OwnerLabel::lossy(&format!("{}ü", "x".repeat(119)));
        assert_eq!(cut.as_str(), "x".repeat(119));
    }
}

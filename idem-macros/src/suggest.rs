//! Suggests the known word for a misspelt one.

/// Returns the known word that is closest to `unknown`, if it is close enough for a typing error.
pub(crate) fn suggest<'a>(unknown: &str, known: &[&'a str]) -> Option<&'a str> {
    let allowed = (unknown.chars().count() / 3).max(1);
    known
        .iter()
        .map(|word| (distance(unknown, word), *word))
        .filter(|(distance, word)| {
            *distance <= allowed || word.starts_with(unknown) || unknown.starts_with(word)
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Edit distance: the number of letters to insert, remove, replace or swap with a neighbour (optimal string alignment).
fn distance(one: &str, other: &str) -> usize {
    let one: Vec<char> = one.chars().collect();
    let other: Vec<char> = other.chars().collect();
    let mut before: Vec<usize> = vec![];
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for i in 0..one.len() {
        let mut row = vec![i + 1];
        for j in 0..other.len() {
            let replaced = last[j] + usize::from(one[i] != other[j]);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && one[i] == other[j - 1] && one[i - 1] == other[j] {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::suggest;

    const KNOWN: &[&str] = &["skip", "rename", "default", "float"];

    #[test]
    fn a_similar_word_is_suggested_and_no_other() {
        assert_eq!(suggest("rename_all", KNOWN), Some("rename"));
        assert_eq!(suggest("defualt", KNOWN), Some("default"));
        assert_eq!(suggest("skp", KNOWN), Some("skip"));
        assert_eq!(suggest("flaot", KNOWN), Some("float"));
        assert_eq!(suggest("flatten", KNOWN), None);
        assert_eq!(suggest("x", KNOWN), None);
    }
}

//! Stories of histories that the checker did not accept. A history depends on the moments of its requests, so that its
//! seed alone does not bring it back: the file is the only way to explain it later.

use std::path::PathBuf;
use std::{fs, io};

use idem_tests::private::Kind;

use crate::checker::Verdict;
use crate::history::History;

/// Writes the story of a history to a file beside this program. Returns the story, which begins with the file's path.
pub(crate) fn kept(kind: Kind, verdict: Verdict, seed: u64, history: &History) -> String {
    let story = format!("{kind}: {verdict:?}, seed {seed}\n{history}");
    match write(&format!("{kind}-{seed}.txt"), &story) {
        Ok(path) => format!("kept in {}\n{story}", path.display()),
        Err(error) => format!("not kept in a file: {error}\n{story}"),
    }
}

fn write(name: &str, story: &str) -> io::Result<PathBuf> {
    let folder = std::env::current_exe()?.with_file_name("rejected-histories");
    fs::create_dir_all(&folder)?;
    let path = folder.join(name);
    fs::write(&path, story)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_is_kept_with_its_seed() {
        let seed = 17;
        let text = kept(Kind::Memory, Verdict::Rejected, seed, &History::default());
        let first = text.lines().next().unwrap_or_default();
        let path = first.strip_prefix("kept in ").expect(&text);
        let story = fs::read_to_string(path).expect(path);
        assert_eq!(story, "memory: Rejected, seed 17\n");
        fs::remove_file(path).expect(path);
    }
}

//! A copy of the repository, for commands that change its sources.

use std::fs;
use std::path::Path;

use anyhow::Context as _;

/// Copies the files that git knows. Files that have not changed keep their times, so that cargo need not compile them.
pub(crate) fn copy(root: &Path, to: &Path, files: &str) -> anyhow::Result<()> {
    for file in files.split('\0').filter(|file| !file.is_empty()) {
        let (from, to) = (root.join(file), to.join(file));
        // A deleted file is still listed until it is committed, and a link leads to a file that is copied itself.
        let Ok(text) = fs::read(&from) else { continue };
        if fs::read(&to).is_ok_and(|copied| copied == text) {
            continue;
        }
        let folder = to.parent().context("a file has no folder")?;
        fs::create_dir_all(folder)?;
        fs::write(&to, text)?;
    }
    Ok(())
}

//! Builds the book in `docs/book` with mdBook.

use std::path::{Path, PathBuf};

use xshell::{Shell, cmd};

use crate::run::Run;

/// Version of mdBook. Another version may give the pages other addresses, to which problems link.
const VERSION: &str = "0.5.4";
const BOOK: &str = "docs/book";

/// Builds the book in `book` in the target directory, and prints the path of its first page.
///
/// mdBook is installed from source if the machine does not have this version. As a dependency of this program it would
/// be compiled before each other command too.
pub(crate) fn build(run: &mut Run) -> anyhow::Result<()> {
    let tools = run.target().join("tools");
    let mdbook = match installed(run.shell(), &tools) {
        Some(mdbook) => mdbook,
        None => install(run, &tools)?,
    };
    let output = run.target().join("book");
    run.step("book", |sh| {
        Ok(cmd!(sh, "{mdbook} build {BOOK} --dest-dir {output}").run()?)
    })?;
    println!("{}", output.join("index.html").display());
    Ok(())
}

/// Finds mdBook among the private tools or on `PATH`.
fn installed(sh: &Shell, tools: &Path) -> Option<PathBuf> {
    let candidates = [tools.join("bin/mdbook"), PathBuf::from("mdbook")];
    candidates.into_iter().find(|mdbook| {
        let version = cmd!(sh, "{mdbook} --version").quiet().ignore_stderr();
        let version = version.read();
        version.is_ok_and(|it| it.trim_start_matches("mdbook v") == VERSION)
    })
}

/// Installs mdBook with its search, without the features that serve and watch a book.
fn install(run: &mut Run, tools: &Path) -> anyhow::Result<PathBuf> {
    let cargo = run.cargo();
    let build = tools.join("build");
    run.step("mdbook", |sh| {
        Ok(cmd!(
            sh,
            "{cargo} install mdbook@{VERSION} --locked --no-default-features --features search --profile dev
             --root {tools} --target-dir {build}"
        )
        .run()?)
    })?;
    Ok(tools.join("bin/mdbook"))
}

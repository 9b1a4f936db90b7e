//! Path of the runtime, if no option gives it.

use std::path::Path;
use std::{env, fs};

use proc_macro2::{Ident, Span, TokenStream};
use quote::quote;

const PACKAGE: &str = "idem-runtime";

/// Path of the runtime under the name that it has in the manifest of the compiled crate.
///
/// The manifest is read anew for each expansion, because one process of an editor expands the macros of many crates.
pub(crate) fn named_runtime() -> TokenStream {
    let name = manifest().as_deref().and_then(other_name);
    let name = name.and_then(|name| syn::parse_str::<Ident>(&name.replace('-', "_")).ok());
    let name = name.unwrap_or_else(|| Ident::new("idem_runtime", Span::call_site()));
    quote!(::#name)
}

fn manifest() -> Option<String> {
    let folder = env::var_os("CARGO_MANIFEST_DIR")?;
    fs::read_to_string(Path::new(&folder).join("Cargo.toml")).ok()
}

/// Name of a dependency on the package, if it is not the package's own name, as in
/// `idem = { package = "idem-runtime", version = "0.1" }`.
fn other_name(manifest: &str) -> Option<String> {
    let mut found = None;
    let mut section = "";
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
        }
        let (name, value) = if section.ends_with("dependencies") {
            line.split_once('=').unwrap_or((line, ""))
        } else if let Some((_, name)) = section.split_once("dependencies.") {
            (name, line)
        } else {
            continue;
        };
        let name = name.trim().trim_end_matches(".workspace").trim_matches('"');
        if name == PACKAGE {
            return None;
        }
        if names_package(value) {
            found = Some(name.to_owned());
        }
    }
    found
}

/// Returns whether the value of a dependency has `package = "idem-runtime"`.
fn names_package(value: &str) -> bool {
    value.split(['{', ',', '}']).any(|field| {
        let Some((key, value)) = field.split_once('=') else {
            return false;
        };
        key.trim() == "package" && value.trim().trim_matches('"') == PACKAGE
    })
}

#[cfg(test)]
mod tests {
    use super::other_name;

    #[test]
    fn a_renamed_dependency_is_found() {
        for (manifest, name) in [
            (
                "[dependencies]\nidem = { version = \"1\", package = \"idem-runtime\" }",
                "idem",
            ),
            (
                "[dev-dependencies]\n\"once\" = {package=\"idem-runtime\"}\n[features]",
                "once",
            ),
            (
                "[dependencies.idem]\nversion = \"1\"\npackage = \"idem-runtime\"",
                "idem",
            ),
            (
                "[target.'cfg(unix)'.dependencies]\nidem = { package = \"idem-runtime\" }",
                "idem",
            ),
        ] {
            assert_eq!(other_name(manifest).as_deref(), Some(name), "{manifest}");
        }
    }

    #[test]
    fn the_own_name_of_the_package_comes_first() {
        for manifest in [
            "[dependencies]\nidem-runtime = \"1\"",
            "[dependencies]\nidem-runtime.workspace = true\nidem = { package = \"idem-runtime\" }",
            "[dependencies.idem-runtime]\nversion = \"1\"",
            "[dependencies]\nserde = \"1\"\n# idem = { package = \"idem-runtime\" }",
            "[package]\nname = \"idem-runtime\"",
            "[dependencies]\nother = { package = \"idem-macros\" }",
        ] {
            assert_eq!(other_name(manifest), None, "{manifest}");
        }
    }
}

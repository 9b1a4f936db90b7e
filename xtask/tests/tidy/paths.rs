//! Reads the paths that a Rust file names off its tokens.
//!
//! `use`, expressions, types and the insides of macros count alike. Comments, strings and `#[cfg(test)]` do not.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::File;

/// A module, or an item in one, from the root of its crate.
pub(crate) type Path = Vec<String>;

/// The paths in a piece of code.
#[derive(Default)]
pub(crate) struct Names {
    /// Paths into the crate itself.
    pub(crate) own: Vec<Path>,
    /// Last segment of each such path, or its name after `as`, with the path.
    pub(crate) aliases: Vec<(String, Path)>,
    /// First segment of every other path.
    pub(crate) foreign: Vec<String>,
}

impl Names {
    /// Names in a file that is this module.
    pub(crate) fn of(module: &Path, file: &File) -> Self {
        let mut names = Self::default();
        names.read(module, tokens(file));
        names
    }

    fn read(&mut self, module: &Path, tokens: TokenStream) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if is_test_only(&tokens[at..]) {
                at = after_item(&tokens, at + 2);
                continue;
            }
            match &tokens[at..] {
                [
                    TokenTree::Ident(word),
                    TokenTree::Ident(name),
                    TokenTree::Group(body),
                    ..,
                ] if word == "mod" => {
                    let mut inner = module.clone();
                    inner.push(name.to_string());
                    self.read(&inner, body.stream());
                    at += 3;
                }
                [TokenTree::Ident(first), rest @ ..] if is_path_separator(rest) => {
                    let begins_path = !continues_path(&tokens[..at]);
                    let base = match first.to_string().as_str() {
                        _ if !begins_path => None,
                        "crate" => Some(vec![]),
                        "self" => Some(module.clone()),
                        "super" => Some(parent(module)),
                        other => {
                            self.foreign.push(other.to_owned());
                            None
                        }
                    };
                    if let Some(base) = base {
                        self.tree(base, &tokens[at + 3..]);
                    }
                    // A group after the separator belongs to the path.
                    at += 3;
                    if matches!(tokens.get(at), Some(TokenTree::Group(_))) {
                        at += 1;
                    }
                }
                [TokenTree::Group(group), ..] => {
                    self.read(module, group.stream());
                    at += 1;
                }
                _ => at += 1,
            }
        }
    }

    /// Reads the rest of a path, or of a `use` tree, after the segments in `base`.
    fn tree(&mut self, mut base: Path, tokens: &[TokenTree]) {
        match tokens {
            [TokenTree::Ident(name), rest @ ..] => {
                let name = name.to_string();
                match name.as_str() {
                    "super" => base = parent(&base),
                    "self" => {}
                    _ => base.push(name.clone()),
                }
                if is_path_separator(rest) {
                    return self.tree(base, &rest[2..]);
                }
                let alias = match rest {
                    [TokenTree::Ident(word), TokenTree::Ident(alias), ..] if word == "as" => {
                        alias.to_string()
                    }
                    _ if name == "self" => base.last().cloned().unwrap_or_default(),
                    _ => name,
                };
                self.aliases.push((alias, base.clone()));
                self.own.push(base);
            }
            [TokenTree::Group(group), ..] if group.delimiter() == Delimiter::Brace => {
                let tokens: Vec<_> = group.stream().into_iter().collect();
                for branch in tokens.split(|it| is_punct(it, ',')) {
                    if !branch.is_empty() {
                        self.tree(base.clone(), branch);
                    }
                }
            }
            _ => self.own.push(base),
        }
    }
}

/// Recognizes the modules that exist only for tests: those with `#[cfg(test)]` on their declaration.
pub(crate) fn test_modules<'a>(
    files: impl IntoIterator<Item = (Path, &'a File)>,
) -> impl Fn(&Path) -> bool {
    let mut modules = Vec::new();
    for (parent, file) in files {
        let tokens: Vec<_> = tokens(file).into_iter().collect();
        for (at, _) in tokens.iter().enumerate() {
            if let [
                TokenTree::Ident(word),
                TokenTree::Ident(name),
                TokenTree::Punct(end),
                ..,
            ] = &tokens[at..]
                && word == "mod"
                && end.as_char() == ';'
                && at >= 2
                && is_test_only(&tokens[at - 2..at])
            {
                let mut module = parent.clone();
                module.push(name.to_string());
                modules.push(module);
            }
        }
    }
    move |module| modules.contains(module)
}

fn parent(module: &Path) -> Path {
    module[..module.len().saturating_sub(1)].to_vec()
}

pub(crate) fn tokens(file: &File) -> TokenStream {
    file.text
        .parse()
        .unwrap_or_else(|error| panic!("{} does not parse: {error}", file.path))
}

fn is_punct(token: &TokenTree, mark: char) -> bool {
    matches!(token, TokenTree::Punct(it) if it.as_char() == mark)
}

pub(crate) fn is_path_separator(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [a, b, ..] if is_punct(a, ':') && is_punct(b, ':'))
}

/// Returns true if the tokens end in a path segment and `::`. A `::` at the start of a path names a crate.
fn continues_path(before: &[TokenTree]) -> bool {
    let Some((rest, separator)) = before.split_last_chunk::<2>() else {
        return false;
    };
    is_path_separator(separator)
        && rest.last().is_some_and(|token| match token {
            TokenTree::Ident(word) => !["use", "as", "in", "return"].contains(&&*word.to_string()),
            token => is_punct(token, '>') || matches!(token, TokenTree::Group(_)),
        })
}

/// Returns true if the tokens begin with `#[cfg(test)]`.
fn is_test_only(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [mark, TokenTree::Group(attribute), ..]
        if is_punct(mark, '#') && attribute.to_string().replace(' ', "").starts_with("[cfg(test)"))
}

/// Index of the first token after the item that begins at `begin`.
fn after_item(tokens: &[TokenTree], begin: usize) -> usize {
    let ends = |token: &TokenTree| {
        is_punct(token, ';')
            || matches!(token, TokenTree::Group(it) if it.delimiter() == Delimiter::Brace)
    };
    let is_use = matches!(tokens.get(begin), Some(TokenTree::Ident(word)) if word == "use");
    tokens[begin..]
        .iter()
        .position(|it| if is_use { is_punct(it, ';') } else { ends(it) })
        .map_or(tokens.len(), |at| begin + at + 1)
}

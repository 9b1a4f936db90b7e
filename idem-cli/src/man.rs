//! `idem man`: the manual page, written from the definition of the command line.

use std::io;

use clap::{Command, CommandFactory as _};
use clap_mangen::Man;

use crate::End;
use crate::arguments::Arguments;
use crate::stdout;

/// Prints the page. One page has all commands, because a reader can only search in one.
pub(crate) fn print() -> anyhow::Result<End> {
    let page = page()?;
    stdout::write(format_args!("{page}"));
    Ok(End::Done)
}

fn page() -> io::Result<String> {
    let mut command = Arguments::command();
    command.build();
    let man = Man::new(command.clone()).manual("Manual of idem");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    text.extend_from_slice(b".SH COMMANDS\n");
    write_commands(&command, &mut text)?;
    man.render_extra_section(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    // Each section begins with the definition of an apostrophe. The page needs one.
    let (definition, others): (Vec<_>, Vec<_>) = text
        .lines()
        .partition(|line| line.starts_with(".ie ") || line.starts_with(".el "));
    let lines = definition.into_iter().take(2).chain(others);
    let page: String = lines.map(|line| format!("{line}\n")).collect();
    Ok(page.replacen(".SH EXTRA\n", ".SH \"EXIT STATUS\"\n", 1))
}

/// Writes a subsection for each command below this one.
fn write_commands(above: &Command, page: &mut Vec<u8>) -> io::Result<()> {
    let commands = above.get_subcommands();
    for command in commands.filter(|it| it.get_name() != "help") {
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        page.extend_from_slice(format!(".SS \"{name}\"\n").as_bytes());
        let man = Man::new(own_options(command));
        let mut text = Vec::new();
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        man.render_options_section(&mut text)?;
        // A subsection has paragraphs instead of sections.
        for line in String::from_utf8_lossy(&text).lines() {
            let is_heading = line.starts_with(".SH ");
            page.extend_from_slice(if is_heading { ".PP" } else { line }.as_bytes());
            page.push(b'\n');
        }
        write_commands(command, page)?;
    }
    Ok(())
}

/// The command without the options that every command has, because the page has a section about them.
fn own_options(command: &Command) -> Command {
    command.clone().mut_args(|argument| {
        let is_of_all = argument.is_global_set() || argument.get_id() == "help";
        argument.hide(is_of_all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_command_and_the_options_of_all_once() {
        let page = page().unwrap();
        for command in ["idem explain", "idem outbox requeue", "idem man"] {
            let heading = format!(".SS \"{command}\"\n");
            assert_eq!(page.matches(&heading).count(), 1, "{command}");
        }
        assert!(!page.contains("idem help"), "{page}");
        assert_eq!(page.matches("IDEM_STORE_URL").count(), 1, "{page}");
        assert!(page.contains("doctor"), "{page}");
        assert_eq!(page.matches(".ie ").count(), 1, "{page}");
        let headings: Vec<_> = page.lines().filter(|it| it.starts_with(".SH ")).collect();
        assert_eq!(
            headings,
            [
                ".SH NAME",
                ".SH SYNOPSIS",
                ".SH DESCRIPTION",
                ".SH OPTIONS",
                ".SH COMMANDS",
                ".SH \"EXIT STATUS\""
            ]
        );
    }
}

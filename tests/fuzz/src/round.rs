//! A short round of mutations, which is the same each time.

/// Longest input that is made.
const MAX_LEN: usize = 4096;

/// Inputs made from those of a corpus. The same corpus gives the same inputs.
#[derive(Debug)]
pub struct Round<'c> {
    corpus: &'c [Vec<u8>],
    state: u64,
}

impl<'c> Round<'c> {
    /// A round over these inputs.
    pub fn new(corpus: &'c [Vec<u8>]) -> Self {
        Self {
            corpus,
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// The next number below `end`, by xorshift.
    fn below(&mut self, end: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) as usize % end.max(1)
    }

    fn mutate(&mut self, input: &mut Vec<u8>) {
        let at = self.below(input.len() + 1);
        match self.below(6) {
            0 => input.insert(at, self.below(256) as u8),
            1 if at < input.len() => {
                input.remove(at);
            }
            2 if at < input.len() => input[at] ^= 1 << self.below(8),
            3 => {
                let other = self.corpus.get(self.below(self.corpus.len()));
                let other = other.map_or(&[][..], Vec::as_slice);
                let from = self.below(other.len() + 1);
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            4 => {
                let end = (at + self.below(16)).min(input.len());
                let part = input[at..end].to_vec();
                input.splice(at..at, part);
            }
            _ => {
                const WORDS: &[&[u8]] = &[
                    b"\"",
                    b"\\",
                    b"\n",
                    b"\r\n",
                    b"-",
                    b"0",
                    b"9223372036854775808",
                    b"\xff",
                    b"\0",
                ];
                let word = WORDS[self.below(WORDS.len())];
                input.splice(at..at, word.iter().copied());
            }
        }
        input.truncate(MAX_LEN);
    }
}

impl Iterator for Round<'_> {
    type Item = Vec<u8>;

    /// Never ends: take as many as there is time for.
    fn next(&mut self) -> Option<Vec<u8>> {
        let mut input = self
            .corpus
            .get(self.below(self.corpus.len()))
            .cloned()
            .unwrap_or_default();
        for _ in 0..=self.below(4) {
            self.mutate(&mut input);
        }
        Some(input)
    }
}

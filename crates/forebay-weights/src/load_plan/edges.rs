//! Where a file says that it is best cut, where that is not at equal distances.

use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result, Span};

/// Places at which a file may be cut without reading anything of it twice; cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Edges(Arc<[(Span, u64)]>);

impl Edges {
    /// From spans that ascend and do not overlap, each with the distance of edges from its start on; its end is an edge, too. Between spans there is none.
    pub fn new(spans: &[(Span, u64)]) -> Result<Self> {
        let mut pairs = spans.iter().zip(spans.iter().skip(1));
        let is_sorted = pairs.all(|((span, _), (next, _))| span.end() <= next.start());
        if is_sorted && spans.iter().all(|(_, step)| *step > 0) {
            return Ok(Self(spans.into()));
        }
        let message = "the edges of a file do not ascend";
        Err(Error::new(ErrorKind::InvalidInput, "open", message))
    }

    /// The last edge behind `after` and not behind `until`.
    pub(super) fn last_within(&self, after: u64, until: u64) -> Option<u64> {
        let next = self.0.partition_point(|(span, _)| span.start() <= until);
        let (span, step) = self.0.get(next.checked_sub(1)?)?;
        let edge = if until >= span.end() {
            span.end()
        } else {
            until - (until - span.start()) % step
        };
        (edge > after).then_some(edge)
    }

    /// The first edge behind `after`.
    pub(super) fn first_behind(&self, after: u64) -> Option<u64> {
        let next = self.0.partition_point(|(span, _)| span.end() <= after);
        let (span, step) = self.0.get(next)?;
        let Some(over) = after.checked_sub(span.start()) else {
            return Some(span.start());
        };
        let edge = after.saturating_add(step - over % step);
        Some(edge.min(span.end()))
    }

    /// The distance of edges around a byte.
    pub(super) fn step_at(&self, byte: u64) -> Option<u64> {
        let next = self.0.partition_point(|(span, _)| span.end() <= byte);
        let (span, step) = self.0.get(next)?;
        (span.start() <= byte).then_some(*step)
    }

    /// Cut a span into pieces that end at edges, of at most `piece_bytes` where there is one by then; of at most `piece_bytes_max` where there is one by then;
    /// and somewhere else where there is none.
    pub(super) fn pieces(&self, span: Span, piece_bytes: u64, piece_bytes_max: u64) -> Result<Vec<Span>> {
        let mut pieces = Vec::new();
        let mut at = span.start();
        while at < span.end() {
            let until = at.saturating_add(piece_bytes.max(1));
            let end = if until >= span.end() {
                span.end()
            } else {
                let near = self.last_within(at, until);
                let far = || {
                    let edge = self.first_behind(at)?.min(span.end());
                    (edge - at <= piece_bytes_max).then_some(edge)
                };
                near.or_else(far).unwrap_or(until)
            };
            pieces.push(Span::new(at, end)?);
            at = end;
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn span(start: u64, end: u64) -> Span {
        Span::new(start, end).unwrap()
    }

    #[test]
    fn edges_are_found_by_span_and_step() {
        let edges = Edges::new(&[(span(100, 160), 25), (span(160, 170), 10), (span(200, 260), 60)]).unwrap();
        for (after, until, edge) in [
            (100, 149, Some(125)),
            (100, 150, Some(150)),
            (100, 159, Some(150)),
            (100, 160, Some(160)),
            (150, 165, Some(160)),
            (160, 165, None),
            (160, 199, Some(170)),
            (180, 190, None),
            (180, 200, Some(200)),
            (0, 99, None),
            (0, 1000, Some(260)),
        ] {
            assert_eq!(edges.last_within(after, until), edge, "{after} {until}");
        }
        for (after, edge) in [
            (0, Some(100)),
            (100, Some(125)),
            (149, Some(150)),
            (150, Some(160)),
            (165, Some(170)),
            (170, Some(200)),
            (259, Some(260)),
            (260, None),
        ] {
            assert_eq!(edges.first_behind(after), edge, "{after}");
        }
        assert_eq!((edges.step_at(160), edges.step_at(180)), (Some(10), None));
        assert!(Edges::new(&[(span(0, 10), 5), (span(9, 20), 5)]).is_err());
        assert!(Edges::new(&[(span(0, 10), 0)]).is_err());
    }

    proptest! {
        /// Pieces are the span; they end at edges wherever one was near enough.
        #[test]
        fn pieces_end_at_edges(spans in prop::collection::vec((1u64..300, 1u64..100), 1..8), start in 0u64..500, len in 0u64..900, piece in 1u64..200) {
            let mut at = 0;
            let mut all = Vec::new();
            let mut cuts = vec![0];
            for (len, step) in spans {
                all.push((span(at, at + len), step));
                cuts.extend((at..at + len).step_by(step as usize));
                at += len;
                cuts.push(at);
            }
            let edges = Edges::new(&all).unwrap();
            let whole = span(start, start + len);
            let pieces = edges.pieces(whole, piece, 2 * piece).unwrap();
            let mut next = start;
            for one in pieces {
                prop_assert_eq!(one.start(), next);
                prop_assert!(!one.is_empty() && one.len() <= 2 * piece);
                next = one.end();
                let is_edge = |at: u64| cuts.contains(&at);
                let has_edge = (one.start() + 1..=one.start() + 2 * piece).any(is_edge);
                prop_assert!(one.end() == whole.end() || is_edge(one.end()) || !has_edge, "{:?}", one);
            }
            prop_assert_eq!(next, whole.end());
        }
    }
}

//! Reports in a real browser: as the benchmarks write them, in windows of a telephone and of a desk, light and dark.

use crate::chromium::Browser;
use crate::show;
use crate::{detect, growth, jitter};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const LOOKS: [(u32, &str); 4] = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")];

/// Functions that judge what is shown. Each lists what is wrong.
const JUDGES: &str = r"
// What is folded has boxes, too.
window.shown = e => e.getClientRects().length > 0 && e.checkVisibility();
window.words = e => (e.closest('figure')?.querySelector('figcaption').textContent ?? '') + ': ' + e.textContent.trim().slice(0, 40);
// Every run of text, with where it is. Glyphs of one size reach less far than their boxes.
window.texts = () => {
    const all = [];
    for (const e of document.querySelectorAll('body *')) {
        if (!shown(e) || ['STYLE', 'TITLE'].includes(e.tagName)) continue;
        for (const n of e.childNodes) {
            if (n.nodeType !== 3 || !n.textContent.trim()) continue;
            const range = document.createRange();
            range.selectNodeContents(n);
            const boxes = e.tagName === 'text' ? [e.getBoundingClientRect()] : [...range.getClientRects()];
            boxes.forEach(b => all.push([e, { left: b.left + 1, right: b.right - 1, top: b.top + 2, bottom: b.bottom - 2 }]));
        }
    }
    return all;
};
window.overlaps = () => texts().flatMap(([x, a], i, all) => all.slice(i + 1)
    .filter(([y, b]) => x !== y && a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)
    .map(([y]) => words(x) + ' over ' + words(y)));
window.outside = () => [...document.querySelectorAll('body *')]
    .filter(e => shown(e) && !e.closest('.scroll') && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(words)
    .concat([...document.querySelectorAll('figure > svg text')].filter(shown).filter(e => {
        const [t, s] = [e.getBoundingClientRect(), e.ownerSVGElement.getBoundingClientRect()];
        return t.left < s.left - 1 || t.right > s.right + 1 || t.top < s.top - 1 || t.bottom > s.bottom + 1;
    }).map(e => 'cut: ' + words(e)))
    .concat(document.documentElement.scrollWidth > document.documentElement.clientWidth ? ['the page'] : []);
window.small = () => texts().filter(([e]) => {
    const svg = e.ownerSVGElement;
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    return parseFloat(getComputedStyle(e).fontSize) * scale < 11;
}).map(([e]) => words(e));
window.rgb = c => c.match(/[\d.]+/g).map(Number);
window.luminance = c => {
    const [r, g, b] = rgb(c).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
window.behind = e => {
    for (; e; e = e.parentElement) {
        const c = getComputedStyle(e).backgroundColor;
        if (rgb(c).length < 4 || rgb(c)[3] > 0) return c;
    }
    return 'rgb(255, 255, 255)';
};
window.contrast = (e, colour) => {
    const [a, b] = [luminance(colour), luminance(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
};
// WCAG 2.1: 4.5 : 1 for text (1.4.3), 3 : 1 for what a figure shows (1.4.11); its grid only helps.
window.pale = () => texts().map(([e]) => [contrast(e, e.tagName === 'text' ? getComputedStyle(e).fill : getComputedStyle(e).color), words(e)])
    .filter(([ratio]) => ratio < 4.5)
    .concat(marks().map(([e, c]) => [contrast(e, c), e.outerHTML.slice(0, 80)]).filter(([ratio]) => ratio < 3));
window.colourOf = e => { const s = getComputedStyle(e); return s.fill === 'none' || e.tagName === 'path' ? s.stroke : s.fill; };
window.marks = () => [...document.querySelectorAll('figure polyline, figure circle, figure rect, figure path')]
    .filter(e => shown(e) && e.getAttribute('stroke')?.toLowerCase() !== '#dfe5ea').map(e => [e, colourOf(e)]);
// Colours that no key explains, and entries of keys that nothing is drawn for.
window.unexplained = () => [...document.querySelectorAll('figure')].flatMap(f => {
    const key = [...f.querySelectorAll('.key path, .key circle, .key rect')].map(colourOf);
    const drawn = marks().filter(([e]) => e.closest('figure') === f && !e.closest('.key'));
    const title = f.querySelector('figcaption').textContent;
    return (key.length && drawn.length ? [] : [title + ': no key or nothing drawn'])
        .concat(drawn.filter(([, c]) => !key.includes(c)).map(([e]) => title + ': ' + e.outerHTML.slice(0, 80)));
});
";

/// All reports, as files.
fn reports(directory: &Path) -> Vec<(&'static str, PathBuf)> {
    let of = |name: &'static str, write: &dyn Fn(&Path)| {
        let directory = directory.join(name);
        std::fs::create_dir(&directory).unwrap();
        write(&directory);
        (name, directory.join("report.html"))
    };
    vec![
        of("demo", &|at| std::fs::write(at.join("report.html"), show::page::sample::page()).unwrap()),
        of("detect", &detect::tests::sample),
        of("growth", &growth::tests::sample),
        of("jitter", &jitter::tests::sample),
    ]
}

fn judge(b: &mut Browser, names: &[&str]) -> Vec<(String, Value)> {
    names.iter().map(|name| ((*name).to_owned(), b.eval(&format!("{name}()")))).filter(|(_, wrong)| *wrong != json!([])).collect()
}

const ALL: [&str; 5] = ["overlaps", "outside", "small", "pale", "unexplained"];

#[test]
fn reports_can_be_read_on_a_telephone_and_on_a_desk_in_the_light_and_in_the_dark() {
    let Some(mut b) = Browser::start("reports") else { return };
    let directory = tempfile::tempdir().unwrap();
    for (name, file) in reports(directory.path()) {
        for (width, scheme) in LOOKS {
            b.look(width, scheme);
            b.open(&format!("file://{}", file.display()));
            b.until("document.readyState === 'complete' && document.querySelector('dl')");
            b.eval(JUDGES);
            assert_eq!(b.eval("document.querySelector('details')?.open ?? false"), json!(false), "{name}: folded at first");
            b.eval("for (const d of document.querySelectorAll('details')) d.open = true");
            b.picture(&format!("{name}-{width}-{scheme}.png"));
            let wrong = judge(&mut b, &ALL);
            assert!(wrong.is_empty(), "{name} {width} {scheme}: {wrong:#?}");
            // One of the two sizes of each figure, and the summary before the first of them.
            let figures = "[...document.querySelectorAll('figure')]";
            let one = format!(
                "{figures}.length && {figures}.every(f => [...f.querySelectorAll(':scope > svg')].filter(shown).length === 1)"
            );
            assert_eq!(b.eval(&one), json!(true), "{name} {width}");
            let first = "document.querySelector('dl').getBoundingClientRect().bottom <= document.querySelector('figure').getBoundingClientRect().top";
            assert_eq!(b.eval(first), json!(true), "{name} {width}");
            let summary = b.eval("document.querySelector('dl').innerText").as_str().unwrap().to_owned();
            for known in ["measured", "machine", "Linux", "FiDe"] {
                assert!(summary.contains(known), "{name}: {summary}");
            }
            let dark = b.eval("luminance(behind(document.querySelector('figure'))) < 0.2") == json!(true);
            assert_eq!(dark, scheme == "dark", "{name}");
        }
    }
    assert!(b.requests.iter().all(|r| r.starts_with("file://")), "{:?}", b.requests);
}

#[test]
fn drawings_as_files_follow_dark_mode_too() {
    let Some(mut b) = Browser::start("drawings") else { return };
    let directory = tempfile::tempdir().unwrap();
    jitter::tests::sample(directory.path());
    let line = |b: &mut Browser, scheme| {
        b.look(1280, scheme);
        b.open(&format!("file://{}", directory.path().join("fig3.svg").display()));
        b.until("document.querySelector('polyline[stroke=\"#1565C0\"]')");
        b.eval("getComputedStyle(document.querySelector('polyline[stroke=\"#1565C0\"]')).stroke + getComputedStyle(document.querySelector('rect')).fill")
    };
    assert_eq!(line(&mut b, "light"), json!("rgb(21, 101, 192)rgb(255, 255, 255)"));
    assert_eq!(line(&mut b, "dark"), json!("rgb(111, 177, 255)rgb(23, 29, 35)"));
    b.picture("file-dark.png");
}

/// Each judge finds what was made wrong for it.
#[test]
fn judges_of_reports_find_what_is_wrong() {
    let Some(mut b) = Browser::start("reports") else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("report.html");
    std::fs::write(&file, show::page::sample::page()).unwrap();
    let text = "[...document.querySelectorAll('figure > svg text')].filter(shown)[0]";
    for (name, harm) in [
        (
            "overlaps",
            "{ const [x, y] = [...document.querySelectorAll('figure > svg text')].filter(shown).slice(-2);
               for (const at of ['x', 'y']) x.setAttribute(at, y.getAttribute(at)); }"
                .into(),
        ),
        ("outside", "document.querySelector('h1').style.width = '2000px'".into()),
        ("outside", format!("{text}.setAttribute('x', 5000)")),
        ("small", format!("{text}.setAttribute('font-size', 6)")),
        ("pale", format!("{text}.style.fill = '#cccccc'")),
        ("pale", "[...document.querySelectorAll('figure > svg circle')].filter(shown)[0].style.fill = '#cccccc'".into()),
        ("unexplained", "[...document.querySelectorAll('figure > svg circle')].filter(shown)[0].style.fill = '#123456'".into()),
    ] {
        b.look(390, "light");
        b.open(&format!("file://{}", file.display()));
        b.until("document.readyState === 'complete' && document.querySelector('dl')");
        b.eval(JUDGES);
        assert_eq!(judge(&mut b, &ALL), [], "before");
        b.eval(&harm);
        assert!(!judge(&mut b, &[name]).is_empty(), "{name} did not find: {harm}");
    }
}

//! x
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let o = fide_sim::Options { engine: fide_sim::options::parse_kind(&a[1]).unwrap(), policy: fide_sim::options::parse_policy(&a[2]).unwrap(), menu: fide_sim::Menu::ALL.into_iter().find(|m| m.name()==a[3]).unwrap(), hosts: None };
    let mut w = fide_sim::World::new(fide_sim::Plan::generate(a[4].parse().unwrap(), o), true);
    let e = w.run();
    println!("{}\n{:?}", w.timeline().unwrap(), e);
}

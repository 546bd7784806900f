-------------------------------- MODULE Resume --------------------------------
(* The rule by which a group whose members have all stopped goes on by itself                  *)
(* (proto/src/services/groups/resume.rs). Each node runs a member of a replicated log, stops   *)
(* with its log kept in memory, or loses its memory. A generation is one run of the group. Any *)
(* nodes that do not run it may apply the rule to the logs that they keep, while others that   *)
(* they do not hear may run it.                                                                *)
(*                                                                                             *)
(* The engine is what consensus promises and nothing more. A generation has one sequence of    *)
(* entries, and crash reports are true. Each member applies the entries in its own time. It    *)
(* may report to its applications what no other member has yet, as a leader of HUC does. An    *)
(* entry that was reported to no application may be in the log of a member that stopped only;  *)
(* the others may decide another entry in its place once they know of the crash (HUC under the *)
(* policy fence). A member that applies anything after a crash report (1) has by then all that *)
(* the crashed member had, unless others decided something else in its place, and (2) agrees   *)
(* with the logs of all members that it still counts.                                          *)
EXTENDS Naturals, FiniteSets, Sequences, TLC

CONSTANTS
  Node,        \* model values
  Entries,     \* greatest length of a log
  Generations, \* runs of the group, the first one included
  MaxLoss,     \* how often a node loses its memory
  Joins,       \* TRUE: in each generation one node may join again, as another member
  Person,      \* TRUE: a person may have a node go on with its log, whatever the rule says
  Decides,     \* TRUE: a log does not count a member that crashed before its last entry was
               \* decided. FALSE: nor one whose crash was only reported
  Carried,     \* TRUE: promise (1), as above; where the crashed member has lost its memory, for
               \* what was reported. FALSE: only for what the crashed member reported itself
  Drained,     \* TRUE: what was decided before a crash report does not count as decided after
               \* it. FALSE: it does if it is applied after it, and neither promise holds for it
  Inherited,   \* TRUE: a joiner does not count whom the sender of its state does not count.
               \* FALSE: nor anybody whose crash was reported to that sender
  Ordered,     \* TRUE: a log is behind those of members that went on without its member.
               \* FALSE: the longest log is chosen, whoever its members are
  AnyOut,      \* TRUE: a member that is away is not waited for if any log of the generation
               \* does not count it. FALSE: only if one of those does that are behind no other
  Waits        \* TRUE: all members that are counted must be here with their logs

Joiner == "joiner"
None == "none"
Member == Node \cup {Joiner}
Generation == 1..Generations
Symmetry == Permutations(Node)

VARIABLES
  runs,        \* nodes that run a member
  gen,         \* by node: the generation of its log; 0: it keeps none
  me,          \* by node: the member that its log is of
  log,         \* by node: what that member applied
  reported,    \* by node: members whose crash was reported to it
  without,     \* by node: those of them that it does not count, because it went on without them
  invited,     \* by node: the generation to which it was invited and where it never took part
  listens,     \* nodes that wait for the state of the generation to which they were invited
  first,       \* by generation: its first members
  start,       \* by generation: so many entries its log began with
  decided,     \* by generation: the entries decided, while anybody runs it
  said,        \* by generation and member: so many entries were reported to its applications
  last,        \* how many generations have begun
  losses,      \* how often a node has lost its memory
  told,        \* ghost: all entries that were reported to any application
  lost,        \* ghost: a generation began by itself without some of that
  torn         \* ghost: two applications were told different entries for one position

vars == <<runs, gen, me, log, reported, without, invited, listens, first, start, decided, said,
          last, losses, told, lost, torn>>
history == <<first, start, last>>
ghosts == <<told, lost, torn>>

IsPrefix(s, t) == Len(s) <= Len(t) /\ s = SubSeq(t, 1, Len(s))

(* An entry: a number that no other one at its position has, the member that leaves by it, the *)
(* node that joins by it. Of those that a generation began with, neither counts any more.      *)
Left(s, g) == { s[i].leave : i \in (start[g] + 1)..Len(s) } \ {None}
Joined(s, g) == { s[i].join : i \in (start[g] + 1)..Len(s) } \ {None}

TypeOK ==
  /\ runs \subseteq Node /\ listens \subseteq Node \ runs
  /\ \A n \in Node :
       /\ gen[n] \in 0..last /\ invited[n] \in 0..last /\ me[n] \in Member \cup {None}
       /\ (n \in runs => gen[n] > 0) /\ (n \in listens => invited[n] > 0)
       /\ without[n] \subseteq reported[n] /\ reported[n] \subseteq Member
       /\ Len(log[n]) <= Entries
       /\ (gen[n] > 0 => me[n] # None /\ said[gen[n]][me[n]] <= Len(log[n]))
  /\ last \in Generation /\ losses \in 0..MaxLoss

Init ==
  /\ runs = Node /\ gen = [n \in Node |-> 1] /\ me = [n \in Node |-> n]
  /\ log = [n \in Node |-> <<>>]
  /\ reported = [n \in Node |-> {}] /\ without = [n \in Node |-> {}]
  /\ invited = [n \in Node |-> 0] /\ listens = {}
  /\ first = [g \in Generation |-> IF g = 1 THEN Node ELSE {}]
  /\ start = [g \in Generation |-> 0]
  /\ decided = [g \in Generation |-> <<>>]
  /\ said = [g \in Generation |-> [m \in Member |-> 0]]
  /\ last = 1 /\ losses = 0 /\ told = <<>> /\ lost = FALSE /\ torn = FALSE

-------------------------------------------------------------------------------
(* The engine. *)

Running(g) == { n \in runs : gen[n] = g }

(* No member of that id runs, nor will. *)
IsDead(m, g) ==
  /\ \A n \in Running(g) : me[n] # m
  /\ ~(m = Joiner /\ \E n \in listens : invited[n] = g)

Known(n) == first[gen[n]] \cup (IF Joined(log[n], gen[n]) = {} THEN {} ELSE {Joiner})
Members(n) == Known(n) \ Left(log[n], gen[n])

(* The least number that no entry at this position has. *)
Fresh(i) ==
  LET all == { log[n] : n \in Node } \cup { decided[g] : g \in Generation } \cup {told}
      used == { s[i].v : s \in { t \in all : Len(t) >= i } }
  IN CHOOSE v \in 1..(Cardinality(used) + 1) : v \notin used /\ \A w \in 1..(v - 1) : w \in used

(* The next entry is decided, and this member applies it. It has all that was reported, and    *)
(* differs only from logs of members whose crash was reported to it.                           *)
Decide(n) ==
  LET g == gen[n] i == Len(log[n]) + 1
      leaves == reported[n] \cap Members(n)
      joins == IF Joined(log[n], g) = {} THEN { k \in listens : invited[k] = g } ELSE {}
  IN
  /\ n \in runs /\ i <= Entries
  /\ \A m \in Member : said[g][m] < i
  /\ \A k \in Node : gen[k] = g =>
       IsPrefix(log[k], log[n]) \/ (k \notin runs /\ me[k] \in reported[n])
  /\ \E e \in [v : {Fresh(i)}, leave : {None} \cup leaves, join : {None} \cup joins] :
       /\ e.leave = None \/ e.join = None
       /\ log' = [log EXCEPT ![n] = Append(@, e)]
       /\ decided' = [decided EXCEPT ![g] = Append(log[n], e)]
  /\ without' = [without EXCEPT ![n] = reported[n]]
  /\ UNCHANGED <<runs, gen, me, reported, invited, listens, history, said, losses, ghosts>>

(* So many entries of this log are what was reported to applications. *)
ToldOf(n) == CHOOSE i \in 0..Len(log[n]) :
  /\ IsPrefix(SubSeq(log[n], 1, i), told)
  /\ i = Len(log[n]) \/ ~IsPrefix(SubSeq(log[n], 1, i + 1), told)
(* The log of this node is lost, or replaced; promise (1) still holds for what was reported.    *)
Gone(n) ==
  [g \in Generation |-> [m \in Member |->
    IF g = gen[n] /\ m = me[n] /\ Carried /\ ToldOf(n) > said[g][m] THEN ToldOf(n) ELSE said[g][m]]]

(* Decided entries reach a member. *)
Apply(n) ==
  LET g == gen[n] IN
  /\ n \in runs /\ IsPrefix(log[n], decided[g])
  /\ \E to \in (Len(log[n]) + 1)..Len(decided[g]) :
       LET s == SubSeq(decided[g], 1, to) IN
       /\ Drained /\ reported[n] # without[n] =>
            /\ \A m \in reported[n] \ without[n] :
                 /\ said[g][m] <= to
                 /\ Carried => \A k \in Node : gen[k] = g /\ me[k] = m =>
                      IsPrefix(log[k], s) \/ ~IsPrefix(log[k], decided[g])
            /\ \A k \in Node : gen[k] = g /\ me[k] \notin reported[n] =>
                 IsPrefix(log[k], s) \/ IsPrefix(s, log[k])
       /\ log' = [log EXCEPT ![n] = s]
  /\ without' = [without EXCEPT ![n] = reported[n]]
  /\ UNCHANGED <<runs, gen, me, reported, invited, listens, history, decided, said, losses,
                 ghosts>>

(* A member reports to its applications all that it applied. *)
Tell(n) ==
  LET g == gen[n] s == log[n] IN
  /\ n \in runs /\ said[g][me[n]] < Len(s)
  /\ said' = [said EXCEPT ![g][me[n]] = Len(s)]
  /\ told' = IF IsPrefix(told, s) THEN s ELSE told
  /\ torn' = (torn \/ ~(IsPrefix(told, s) \/ IsPrefix(s, told)))
  /\ UNCHANGED <<runs, gen, me, log, reported, without, invited, listens, history, decided,
                 losses, lost>>

Report(n, m) ==
  /\ n \in runs /\ m \in Members(n) \ reported[n] /\ m # me[n] /\ IsDead(m, gen[n])
  /\ reported' = [reported EXCEPT ![n] = @ \cup {m}]
  /\ UNCHANGED <<runs, gen, me, log, without, invited, listens, history, decided, said, losses,
                 ghosts>>

(* Nothing reaches anybody of a generation that nobody runs, nor will. *)
Forget ==
  LET goesOn(g) == (\E n \in runs' : gen'[n] = g) \/ \E n \in listens' : invited'[n] = g
  IN decided' = [g \in Generation |-> IF goesOn(g) THEN decided[g] ELSE <<>>]

Stop(n) ==
  LET gone == IF Decides THEN without[n] ELSE reported[n] IN
  /\ n \in runs /\ runs' = runs \ {n}
  /\ reported' = [reported EXCEPT ![n] = gone] /\ without' = [without EXCEPT ![n] = gone]
  /\ UNCHANGED <<gen, me, log, invited, listens, history, said, losses, ghosts>>
  /\ Forget

Lose(n) ==
  /\ losses < MaxLoss /\ losses' = losses + 1 /\ gen[n] + invited[n] > 0
  /\ runs' = runs \ {n} /\ listens' = listens \ {n}
  /\ gen' = [gen EXCEPT ![n] = 0] /\ me' = [me EXCEPT ![n] = None]
  /\ log' = [log EXCEPT ![n] = <<>>]
  /\ reported' = [reported EXCEPT ![n] = {}] /\ without' = [without EXCEPT ![n] = {}]
  /\ invited' = [invited EXCEPT ![n] = 0]
  /\ said' = Gone(n)
  /\ UNCHANGED <<history, ghosts>>
  /\ Forget

-------------------------------------------------------------------------------
(* A node joins again, by a member that knows of the end of its former one. *)

Invite(n) ==
  /\ Joins /\ n \notin runs
  /\ \E g \in Generation :
       /\ gen[n] <= g
       /\ \E k \in Running(g) : n \notin Members(k) \ reported[k]
       /\ \A k \in Node : invited[k] # g
       /\ \A s \in {decided[g]} \cup { log[k] : k \in { j \in Node : gen[j] = g } } :
            Joined(s, g) = {}
       /\ invited' = [invited EXCEPT ![n] = g]
  /\ listens' = listens \cup {n}
  /\ UNCHANGED <<runs, gen, me, log, reported, without, history, decided, said, losses, ghosts>>

(* It takes part, with a state whose sender may have stopped since. *)
TakePart(n, from) ==
  LET g == invited[n]
      gone == IF Inherited THEN without[from] ELSE reported[from] IN
  /\ n \in listens /\ from # n /\ gen[from] = g /\ IsPrefix(log[from], decided[g])
  /\ n \in Joined(log[from], g) /\ Joiner \in Members(from)
  /\ runs' = runs \cup {n} /\ listens' = listens \ {n}
  /\ gen' = [gen EXCEPT ![n] = g] /\ me' = [me EXCEPT ![n] = Joiner]
  /\ log' = [log EXCEPT ![n] = log[from]]
  /\ reported' = [reported EXCEPT ![n] = reported[from]]
  /\ without' = [without EXCEPT ![n] = gone]
  /\ invited' = [invited EXCEPT ![n] = 0]
  /\ said' = Gone(n)
  /\ UNCHANGED <<history, decided, losses, ghosts>>

-------------------------------------------------------------------------------
(* The rule. *)

Counted(n) == Members(n) \ without[n]
WentOnWithout(n, m) == m \in Known(n) \ Counted(n)
NodesOf(n, m) == IF m = Joiner THEN Joined(log[n], gen[n]) ELSE {m}

(* Of the logs that these nodes keep: those of the latest generation. *)
Latest(here) == { n \in here : gen[n] > 0 /\ \A k \in here : gen[k] <= gen[n] }
Ahead(here) ==
  LET logs == Latest(here) IN
  IF Ordered THEN { n \in logs : \A k \in logs : ~WentOnWithout(k, me[n]) } ELSE logs
(* The one with the lowest number, in the code. *)
Longest(here) == { n \in Ahead(here) : \A k \in Ahead(here) : Len(log[k]) <= Len(log[n]) }
Differ(here) == \E n, k \in Latest(here) : WentOnWithout(n, me[k]) /\ WentOnWithout(k, me[n])
Missing(here) ==
  LET logs == Latest(here)
      isHere(n, m) == \E k \in NodesOf(n, m) :
        (k \in logs /\ me[k] = m) \/ (k \in here /\ m = Joiner /\ invited[k] = gen[n])
      isOut(m) == \E k \in IF AnyOut THEN logs ELSE Ahead(here) : WentOnWithout(k, m)
  IN { m \in Member : \E n \in Ahead(here) : m \in Counted(n) /\ ~isHere(n, m) /\ ~isOut(m) }
GoesOn(here) ==
  Ahead(here) # {} /\ ~Differ(here) /\ (Waits => Missing(here) = {})

(* A node does not agree to a log that lacks what its own applications were told. *)
Agrees(n, chosen) ==
  \/ gen[n] < gen[chosen]
  \/ gen[n] = gen[chosen] /\ IsPrefix(SubSeq(log[n], 1, said[gen[n]][me[n]]), log[chosen])

(* A generation begins with these first members and this log, at the nodes `at`, which report  *)
(* all of it at once.                                                                          *)
Begin(members, at, base) ==
  LET g == last + 1
      at_(is, was) == [n \in Node |-> IF n \in at THEN is ELSE was[n]] IN
  /\ g <= Generations /\ last' = g
  /\ runs' = runs \cup at
  /\ gen' = at_(g, gen) /\ log' = at_(base, log) /\ invited' = at_(0, invited)
  /\ me' = [n \in Node |-> IF n \in at THEN n ELSE me[n]]
  /\ reported' = at_({}, reported) /\ without' = at_({}, without)
  /\ first' = [first EXCEPT ![g] = members]
  /\ start' = [start EXCEPT ![g] = Len(base)]
  /\ decided' = [decided EXCEPT ![g] = base]
  /\ said' = [said EXCEPT ![g] = [m \in Member |-> IF m \in at THEN Len(base) ELSE 0]]
  /\ UNCHANGED losses

(* Nodes that report their logs to each other, and none of which runs the group, apply the     *)
(* rule. The one that is chosen begins, and any of the others that are to.                     *)
Resume(here) ==
  /\ last < Generations /\ GoesOn(here)
  /\ \E chosen \in Longest(here) :
       /\ \A n \in Ahead(here) : Agrees(n, chosen)
       /\ \E at \in { s \in SUBSET Ahead(here) : chosen \in s } :
            Begin(Ahead(here), at, log[chosen])
       /\ told' = IF IsPrefix(told, log[chosen]) THEN log[chosen] ELSE told
       /\ lost' = (lost \/ ~IsPrefix(told, log[chosen]))
  /\ listens' = listens \ here
  /\ UNCHANGED torn

(* A person has a node go on with its log, and accepts what that loses. *)
Decree(n) ==
  /\ Person /\ runs = {} /\ gen[n] > 0
  /\ Begin({n}, {n}, log[n])
  /\ told' = log[n] /\ listens' = listens \ {n}
  /\ UNCHANGED <<lost, torn>>

Next ==
  \/ \E n \in Node :
       \/ Decide(n) \/ Apply(n) \/ Tell(n) \/ Stop(n) \/ Lose(n) \/ Invite(n) \/ Decree(n)
       \/ \E m \in Member : Report(n, m)
       \/ \E from \in Node : TakePart(n, from)
  \/ \E here \in SUBSET (Node \ runs) : Resume(here)
Spec == Init /\ [][Next]_vars

(* In the model with joins: what may begin beside the last generation, not what that one does. *)
Shortly == last < Generations \/ listens # {}

-------------------------------------------------------------------------------
(* A generation that began by itself has all that was told. *)
NoLoss == ~lost
(* No two applications are told different entries for one position. *)
Agreement == ~torn
(* Two generations never run at once. *)
OneGeneration == \A n, k \in runs : gen[n] = gen[k]
(* Where all members have stopped, all nodes are here and none has lost its memory, the group  *)
(* goes on; unless a first member of the last generation never took part in it, or a node      *)
(* joined again and no log says that its former member is not counted.                         *)
Progress ==
  /\ runs = {} /\ losses = 0 /\ \A n \in first[last] : gen[n] = last
  /\ \A n \in Node : me[n] = Joiner => n \notin Missing(Node)
  => GoesOn(Node) /\ \A chosen \in Longest(Node), n \in Ahead(Node) : Agrees(n, chosen)
=============================================================================

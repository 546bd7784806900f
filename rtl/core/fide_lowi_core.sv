// SPDX-License-Identifier: Apache-2.0
// LOWI (Nano-consensus Alg. 1–3) in hardware: slots, RSBCAST matching, decisions. It is
// proto/src/consensus/lowi.rs, whose head comment says how the algorithm is read; names are alike.
//
// One event or timer at a time. In StIdle the present time is compared with deadlines that were
// computed before; what is due is done with that time frozen (now_q), as one call of the software core
// is, and the deadlines are computed anew (StUpd0–2). A copy that completes nothing takes 4 clocks, or 3
// if another event waits; one that delivers a round takes 10.
module fide_lowi_core
#(
  parameter int unsigned Members = 8,   // ranks
  parameter int unsigned Paths   = 2,
  parameter int unsigned Flights = 16,  // rounds that may be in flight, of all senders
  parameter int unsigned Window  = 8,   // … and of one
  parameter int unsigned ClkNs   = 4    // time of one clock
) (
  input  logic                     clk_i,
  input  logic                     rst_ni,
  input  logic                     clear_i,   // stop: as reset
  input  logic [63:0]              time_i,    // of the NIC's clock: never less than a clock before

  input  fide_lowi_pkg::cfg_t      cfg_i,
  // When slot j begins after the last round: as a rule, before the first round, after a leader left.
  input  logic [Members:0][fide_lowi_pkg::DurW-1:0] wait_run_i,
  input  logic [Members:0][fide_lowi_pkg::DurW-1:0] wait_start_i,
  input  logic [Members:0][fide_lowi_pkg::DurW-1:0] wait_left_i,

  input  logic                     ev_valid_i,
  input  fide_lowi_pkg::ev_t       ev_i,
  output logic                     ev_ready_o,

  // A whole request waits, and whether it changes members or engine.
  input  logic                     req_valid_i,
  input  logic                     req_barrier_i,

  output logic                     speak_valid_o,
  output fide_lowi_pkg::speak_t    speak_o,
  input  logic                     left_i,    // the round's copies have left on all paths

  output logic                     decide_valid_o,
  output fide_lowi_pkg::decide_t   decide_o,
  // A receive buffer that is not needed (any more).
  output logic                     free_valid_o,
  output logic [fide_lowi_pkg::BufW-1:0] free_buffer_o,

  output fide_lowi_pkg::state_t    state_o
);

  localparam int unsigned RankW = fide_lowi_pkg::RankW;
  localparam int unsigned BufW = fide_lowi_pkg::BufW;
  localparam int unsigned LenW = fide_lowi_pkg::LenW;
  localparam int unsigned DurW = fide_lowi_pkg::DurW;
  localparam int unsigned FlightW = $clog2(Flights);
  localparam int unsigned DepthMax = 4;
  localparam logic [15:0] AllRanks = 16'((32'd1 << Members) - 32'd1);
  // gain_ns(): what clocks may gain in a time, 2·ppm/10^6 of it, rounded up.
  localparam logic [20:0] Million = 21'd1_000_000;

  if (Members < 2 || Members > 16) begin : gen_bad_members
    $fatal(1, "fide_lowi_core: Members is 2 to 16");
  end
  if (Paths < 1 || Paths > 8) begin : gen_bad_paths
    $fatal(1, "fide_lowi_core: Paths is 1 to 8");
  end
  if (Window < 2 || Window > Flights || (1 << FlightW) != Flights) begin : gen_bad_flights
    $fatal(1, "fide_lowi_core: Flights is a power of two, and Window is 2 to Flights");
  end
  if (ClkNs < 1 || ClkNs > 64) begin : gen_bad_clock
    $fatal(1, "fide_lowi_core: ClkNs is 1 to 64");
  end

  typedef enum logic [4:0] {
    StOff, StIdle, StSettle, StExpire, StSpeak, StGiveUp, StEvent, StStart, StLookForStart,
    StCopy2, StSkip, StCopy3, StGap, StInsert, StDrain, StScan, StTake, StCatch,
    StUpd0, StUpd1, StUpd2
  } st_e;

  st_e state_q, state_d;
  logic hold_q, hold_d;             // StIdle continues a step: time stands still
  logic [63:0] now_q, now_d;
  fide_lowi_pkg::ev_t ev_q, ev_d;

  // The member's state, as in lowi.rs.
  fide_lowi_pkg::halt_e halted_q, halted_d;
  logic tells_exit_q, tells_exit_d;
  logic [15:0] members_q, members_d, crashed_q, crashed_d, await_q, await_d;
  logic [Members-1:0][63:0] crash_at_q, crash_at_d;
  logic [Members-1:0][Members-1:0] crash_after_q, crash_after_d;  // [i][j]: i was reported after j
  logic [Members-1:0][63:0] through_q, through_d;
  logic [63:0] last_q, last_d;
  logic [RankW-1:0] last_leader_q, last_leader_d;
  logic heard_q, heard_d;
  logic [63:0] heard_at_q, heard_at_d;
  logic told_q, told_d;
  logic [RankW-1:0] told_to_q, told_to_d;
  logic [RankW:0] slot_q, slot_d;
  logic [63:0] begun_q, begun_d;
  logic unsettled_q, unsettled_d;
  logic [63:0] unsettled_at_q, unsettled_at_d;
  logic [63:0] next_q, next_d, decided_q, decided_d;
  logic awaiting_q, awaiting_d;
  logic [DurW-1:0] late_q, late_d;
  logic [DepthMax-1:0][63:0] until_q, until_d;  // the newest first
  logic [DepthMax-1:0] until_valid_q, until_valid_d;
  logic [31:0] refused_q, refused_d;

  // A round of ours that leaves.
  logic leaving_q, leaving_d, left_q, left_d, leaving_batch_q, leaving_batch_d;
  logic [63:0] leaving_sent_q, leaving_sent_d, leaving_fence_q, leaving_fence_d;
  logic leaving_free_q, leaving_free_d;         // no fence: nobody else is there
  logic req_snap_q, req_snap_d;

  // The fastest round of the present leader.
  logic pace_q, pace_d;
  logic [RankW-1:0] pace_leader_q, pace_leader_d;
  logic [63:0] pace_offset_q, pace_offset_d;
  logic [DurW-1:0] aged_q, aged_d, aged_snap_q, aged_snap_d;
  logic [20:0] credit_q, credit_d;              // what may still pass, in 10^-6 ns, before aged_q grows

  // Rounds in flight, and those that were delivered and not taken.
  logic [Flights-1:0] f_valid_q, f_valid_d, f_closed_q, f_closed_d, f_ready_q, f_ready_d, f_msg_q, f_msg_d;
  logic [Flights-1:0][RankW-1:0] f_rank_q, f_rank_d;
  logic [Flights-1:0][63:0] f_number_q, f_number_d, f_due_q, f_due_d, f_inst_q, f_inst_d, f_sent_q, f_sent_d;
  logic [Flights-1:0][Paths-1:0] f_received_q, f_received_d;
  logic [Flights-1:0][31:0] f_digest_q, f_digest_d;
  logic [Flights-1:0] f_batch_q, f_batch_d, f_barrier_q, f_barrier_d, f_buffered_q, f_buffered_d;
  logic [Flights-1:0][BufW-1:0] f_buffer_q, f_buffer_d;
  logic [Flights-1:0][LenW-1:0] f_len_q, f_len_d;

  // Deadlines and what they need (StUpd0–2).
  logic me_in_q, me_in_d;
  logic [RankW:0] me_slot_q, me_slot_d, count_q, count_d;
  logic alone_q, alone_d, dead_q, dead_d, single_q, single_d;
  logic [63:0] dead_at_q, dead_at_d, orphan_at_q, orphan_at_d;
  logic [DurW-1:0] wait_me_q, wait_me_d, wait_next_q, wait_next_d;
  logic has_left_q, has_left_d;
  logic speaks_q, speaks_d, gives_up_q, gives_up_d;
  logic [63:0] speak_at_q, speak_at_d, give_up_at_q, give_up_at_d, fence_q, fence_d;

  // The copy in hand.
  logic [Flights-1:0] hit_q, hit_d;
  logic c_in_q, c_in_d, c_refused_q, c_refused_d, c_old_q, c_old_d;
  logic [RankW:0] c_slot_q, c_slot_d;
  logic [63:0] c_offset_q, c_offset_d, c_through_q, c_through_d;
  logic signed [66:0] c_limit_q, c_limit_d;
  logic [63:0] c_due_q, c_due_d;                // when a round that was not seen before is missing
  logic [63:0] gap_q, gap_d;
  logic [FlightW-1:0] scan_q, scan_d, best_q, best_d;
  logic best_valid_q, best_valid_d;
  logic [FlightW-1:0] take_q, take_d;

  // What StIdle compares.
  logic [63:0] now;
  logic settle_due, expire_due, speak_due, give_up_due, any_due;
  logic [Flights-1:0] expired;
  assign now = hold_q ? now_q : time_i;
  for (genvar i = 0; i < int'(Flights); i++) begin : gen_expired
    assign expired[i] = f_valid_q[i] && !f_closed_q[i] && f_due_q[i] < now;
  end
  // Copies that left while time stood still are judged by the time after.
  assign settle_due  = leaving_q && left_q && !hold_q;
  assign expire_due  = |expired;
  assign speak_due   = speaks_q && !leaving_q && now >= speak_at_q;
  assign give_up_due = gives_up_q && now >= give_up_at_q;
  assign any_due     = (halted_q == fide_lowi_pkg::HaltNone) && (settle_due || expire_due || speak_due || give_up_due);

  // Behind a copy that completes nothing the next event is taken without a clock in StIdle, if nothing is
  // due: neither what StIdle would find nor the round that this copy was the first of.
  logic chains;
  assign chains = !any_due && c_due_q >= time_i;

  // C[0], C[1], …: members from the last leader upwards.
  logic [15:0] candidates, below_ev, mask_me, upwards;
  assign upwards    = ~fide_lowi_pkg::below(last_leader_q);
  assign candidates = members_q & upwards;
  assign below_ev   = candidates & fide_lowi_pkg::below(ev_q.rank);
  assign mask_me    = fide_lowi_pkg::only(cfg_i.me);
  logic me_member;
  assign me_member = |(members_q & mask_me);

  // Who starts the group: the lowest candidate that is not known to be dead.
  logic [15:0] live;
  logic [RankW-1:0] starter;
  logic [4:0] dead_before;
  assign live        = candidates & ~crashed_q;
  assign starter     = fide_lowi_pkg::lowest(live);
  assign dead_before = fide_lowi_pkg::ones16(candidates & fide_lowi_pkg::below(starter));

  // A flight that is free, and those that match.
  logic [FlightW-1:0] free_index;
  logic has_free;
  logic [Flights-1:0] match_ev, match_gap, stale, catch_up, ready_same;
  always_comb begin
    free_index = '0;
    for (int i = int'(Flights) - 1; i >= 0; i--) if (!f_valid_q[i]) free_index = FlightW'(i);
  end
  assign has_free = !(&f_valid_q);
  logic [63:0] through_ev;
  assign through_ev = through_q[ev_q.rank[$clog2(Members)-1:0]];
  for (genvar i = 0; i < int'(Flights); i++) begin : gen_match
    logic same;
    assign same          = f_valid_q[i] && f_rank_q[i] == ev_q.rank;
    assign match_ev[i]   = same && f_number_q[i] == ev_q.round;
    assign match_gap[i]  = same && f_number_q[i] == gap_q;
    assign stale[i]      = same && !f_closed_q[i] && f_number_q[i] <= through_ev;
    assign catch_up[i]   = same && f_closed_q[i] && f_number_q[i] == through_ev + 64'd1;
    assign ready_same[i] = f_ready_q[i] && f_number_q[i] == ev_q.round;
  end

  function automatic logic [FlightW-1:0] index_of(input logic [Flights-1:0] set);
    index_of = '0;
    for (int i = int'(Flights) - 1; i >= 0; i--) if (set[i]) index_of = FlightW'(i);
  endfunction

  // The copy against its flight.
  logic [FlightW-1:0] hit_index;
  logic hit, hit_same;
  logic [Paths-1:0] ev_path_bit, all_paths;
  assign hit       = |hit_q;
  assign hit_index = index_of(hit_q);
  assign hit_same  = f_digest_q[hit_index] == ev_q.digest && f_sent_q[hit_index] == ev_q.sent_ns &&
                     f_inst_q[hit_index] == ev_q.inst && f_len_q[hit_index] == ev_q.len &&
                     f_batch_q[hit_index] == ev_q.has_batch;
  assign ev_path_bit = Paths'(32'd1 << ev_q.path);
  assign all_paths   = cfg_i.paths[Paths-1:0];

  // What this copy took longer than the fastest one of its leader.
  logic signed [66:0] over;
  assign over = 67'($signed(c_offset_q)) - c_limit_q;

  // The delivered round in hand (StTake).
  logic [RankW:0] take_slot;
  logic [63:0] take_expected;
  logic [15:0] take_below;
  logic take_in;
  assign take_below    = candidates & fide_lowi_pkg::below(f_rank_q[take_q]);
  assign take_slot     = fide_lowi_pkg::ones16(take_below);
  assign take_in       = |(candidates & fide_lowi_pkg::only(f_rank_q[take_q]));
  assign take_expected = last_q + 64'd1 + 64'(take_slot);

  logic [63:0] flight;
  assign flight = 64'(cfg_i.flight_ns);

  // Halting: what state the call is in decides whether the others are told.
  logic halt, halt_tell;
  fide_lowi_pkg::halt_e halt_why;

  logic refuse;         // count a refusal, and give its buffer back
  logic release_ev;     // give the event's buffer back
  logic to_update;      // deadlines changed
  logic take_event;     // nothing is due: the next event's step begins
  logic heard_now;      // a round of heard_rank was delivered or sent
  logic [63:0] heard_round;
  logic [RankW-1:0] heard_rank;
  logic push_until;
  logic [63:0] crash_at_ev;
  assign crash_at_ev = crash_at_q[ev_q.rank[$clog2(Members)-1:0]];

  // The latest report among those in a set: that of the one that was reported after all others in it.
  logic [15:0] set_before, set_others;
  logic [63:0] latest_before, latest_others;
  assign set_before = candidates & fide_lowi_pkg::below(cfg_i.me);
  assign set_others = members_q & ~mask_me;
  always_comb begin
    latest_before = '0;
    latest_others = '0;
    for (int i = 0; i < int'(Members); i++) begin
      if (set_before[i] && (set_before[Members-1:0] & ~crash_after_q[i]) == Members'(32'd1 << i)) latest_before = crash_at_q[i];
      if (set_others[i] && (set_others[Members-1:0] & ~crash_after_q[i]) == Members'(32'd1 << i)) latest_others = crash_at_q[i];
    end
  end

  logic [63:0] slot_at, hurry_at, silent_at;
  assign slot_at   = heard_at_q + 64'(wait_me_q);
  assign silent_at = (has_left_q && heard_at_q > dead_at_q) ? heard_at_q : dead_at_q;
  assign hurry_at  = (silent_at + flight > heard_at_q) ? silent_at + flight : heard_at_q;

  always_comb begin
    state_d = state_q; hold_d = hold_q; now_d = now_q; ev_d = ev_q;
    halted_d = halted_q; tells_exit_d = tells_exit_q;
    members_d = members_q; crashed_d = crashed_q; await_d = await_q;
    crash_at_d = crash_at_q; crash_after_d = crash_after_q; through_d = through_q;
    last_d = last_q; last_leader_d = last_leader_q; heard_d = heard_q; heard_at_d = heard_at_q;
    told_d = told_q; told_to_d = told_to_q; slot_d = slot_q; begun_d = begun_q;
    unsettled_d = unsettled_q; unsettled_at_d = unsettled_at_q;
    next_d = next_q; decided_d = decided_q; awaiting_d = awaiting_q; late_d = late_q;
    until_d = until_q; until_valid_d = until_valid_q; refused_d = refused_q;
    leaving_d = leaving_q; left_d = left_q || (left_i && leaving_q); leaving_batch_d = leaving_batch_q;
    leaving_sent_d = leaving_sent_q; leaving_fence_d = leaving_fence_q; leaving_free_d = leaving_free_q;
    req_snap_d = req_snap_q;
    pace_d = pace_q; pace_leader_d = pace_leader_q; pace_offset_d = pace_offset_q; aged_snap_d = aged_snap_q;
    f_valid_d = f_valid_q; f_closed_d = f_closed_q; f_ready_d = f_ready_q; f_msg_d = f_msg_q;
    f_rank_d = f_rank_q; f_number_d = f_number_q; f_due_d = f_due_q; f_inst_d = f_inst_q; f_sent_d = f_sent_q;
    f_received_d = f_received_q; f_digest_d = f_digest_q; f_batch_d = f_batch_q; f_barrier_d = f_barrier_q;
    f_buffered_d = f_buffered_q; f_buffer_d = f_buffer_q; f_len_d = f_len_q;
    me_in_d = me_in_q; me_slot_d = me_slot_q; count_d = count_q; alone_d = alone_q; dead_d = dead_q;
    single_d = single_q; dead_at_d = dead_at_q; orphan_at_d = orphan_at_q;
    wait_me_d = wait_me_q; wait_next_d = wait_next_q; has_left_d = has_left_q;
    speaks_d = speaks_q; gives_up_d = gives_up_q; speak_at_d = speak_at_q; give_up_at_d = give_up_at_q;
    fence_d = fence_q;
    hit_d = hit_q; c_in_d = c_in_q; c_refused_d = c_refused_q; c_old_d = c_old_q; c_slot_d = c_slot_q;
    c_offset_d = c_offset_q; c_through_d = c_through_q; c_limit_d = c_limit_q; c_due_d = c_due_q;
    gap_d = gap_q;
    scan_d = scan_q; best_d = best_q; best_valid_d = best_valid_q; take_d = take_q;

    // Ages by ⌈2·ppm·elapsed / 10^6⌉, without a multiplier.
    aged_d   = aged_q;
    credit_d = credit_q - 21'(cfg_i.drift_step);
    if (credit_q < 21'(cfg_i.drift_step)) begin
      aged_d   = aged_q + 1'b1;
      credit_d = credit_q + Million - 21'(cfg_i.drift_step);
    end

    ev_ready_o = 1'b0;
    speak_valid_o = 1'b0;
    speak_o.round = last_q + 64'd1 + 64'(me_slot_q);
    speak_o.inst = next_q;
    speak_o.sent_ns = now_q;
    speak_o.has_batch = 1'b0;
    decide_valid_o = 1'b0;
    decide_o.own = 1'b0;
    decide_o.leader = f_rank_q[take_q];
    decide_o.buffer = f_buffer_q[take_q];
    decide_o.len = f_len_q[take_q];
    decide_o.round = f_number_q[take_q];
    decide_o.inst = f_inst_q[take_q];
    free_valid_o = 1'b0;
    free_buffer_o = ev_q.buffer;
    halt = 1'b0; halt_tell = 1'b0; halt_why = fide_lowi_pkg::HaltNone;
    refuse = 1'b0; release_ev = 1'b0; to_update = 1'b0; take_event = 1'b0;
    heard_now = 1'b0; heard_round = '0; heard_rank = '0; push_until = 1'b0;

    unique case (state_q)
      StOff: begin
        if (ev_valid_i) begin
          ev_ready_o = 1'b1;
          ev_d = ev_i;
          now_d = time_i;
          if (ev_i.kind == fide_lowi_pkg::EvStart) begin
            state_d = StStart;
          end else begin
            free_valid_o = ev_i.has_buffer;
            free_buffer_o = ev_i.buffer;
          end
        end
      end

      StIdle: begin
        if (any_due) begin
          now_d = now;
          hold_d = 1'b1;
          if (!hold_q) req_snap_d = req_valid_i;
          scan_d = '0;
          best_valid_d = 1'b0;
          if (settle_due) state_d = StSettle;
          else if (expire_due) state_d = StExpire;
          else if (speak_due) state_d = StSpeak;
          else state_d = StGiveUp;
        end else if (hold_q) begin
          hold_d = 1'b0;
        end else if (ev_valid_i) begin
          take_event = 1'b1;
        end
      end

      // Decides the round of ours that has left, if it left in time.
      StSettle: begin
        leaving_d = 1'b0;
        left_d = 1'b0;
        to_update = 1'b1;
        if ((!alone_q && now_q > leaving_sent_q + 64'(late_q)) || (!leaving_free_q && now_q > leaving_fence_q)) begin
          halt = 1'b1;
          halt_why = fide_lowi_pkg::HaltExpelled;
        end else if (leaving_batch_q) begin
          decide_valid_o = 1'b1;
          decide_o.own = 1'b1;
          decide_o.leader = cfg_i.me;
          decide_o.round = last_q;
          decide_o.inst = next_q - 64'd1;
          decided_d = next_q - 64'd1;
        end
      end

      // NET-FAULT: of all timers that have ended the first one's, in the order of sender and number.
      StExpire: begin
        scan_d = scan_q + 1'b1;
        if (expired[scan_q] && (!best_valid_q || f_rank_q[scan_q] < f_rank_q[best_q] ||
            (f_rank_q[scan_q] == f_rank_q[best_q] && f_number_q[scan_q] < f_number_q[best_q]))) begin
          best_valid_d = 1'b1;
          best_d = scan_q;
        end
        if (scan_q == FlightW'(Flights - 1)) begin
          halt = 1'b1;
          halt_tell = 1'b1;
          halt_why = f_received_q[best_d] == '0 ? fide_lowi_pkg::HaltMissing : fide_lowi_pkg::HaltFault;
        end
      end

      StSpeak: begin
        to_update = 1'b1;
        halt = 1'b1;
        if (!alone_q && now_q > fence_q) begin
          halt_why = fide_lowi_pkg::HaltExpelled;
        end else if (unsettled_q && !(alone_q && (single_q || now_q >= orphan_at_q + flight))) begin
          halt_why = fide_lowi_pkg::HaltMissing;
        end else if (|(f_valid_q & ~f_closed_q) || |f_ready_q) begin
          // Whatever was sent before has arrived by now: a copy is missing for good.
          halt_why = fide_lowi_pkg::HaltFault;
          halt_tell = 1'b1;
        end else begin
          halt = 1'b0;
          unsettled_d = 1'b0;
          speak_valid_o = 1'b1;
          speak_o.has_batch = req_snap_q && !awaiting_q &&
                              !(until_valid_q[cfg_i.depth] && until_q[cfg_i.depth] > now_q);
          heard_now = 1'b1;
          heard_round = speak_o.round;
          heard_rank = cfg_i.me;
          leaving_d = 1'b1;
          left_d = 1'b0;
          leaving_batch_d = speak_o.has_batch;
          leaving_sent_d = now_q;
          leaving_fence_d = fence_q;
          leaving_free_d = alone_q;
          if (speak_o.has_batch) begin
            next_d = next_q + 64'd1;
            awaiting_d = req_barrier_i;
            push_until = 1'b1;
          end
        end
      end

      StGiveUp: begin
        slot_d = slot_q + 1'b1;
        to_update = 1'b1;
        if (slot_d >= count_q) begin
          halt = 1'b1;
          halt_why = fide_lowi_pkg::HaltMissing;
        end
      end

      StStart: begin
        members_d = cfg_i.members & AllRanks;
        last_d = cfg_i.begin_round;
        begun_d = cfg_i.begin_round;
        last_leader_d = cfg_i.begin_leader;
        next_d = cfg_i.begin_next;
        decided_d = cfg_i.begin_next - 64'd1;
        late_d = cfg_i.late_ns;
        if (ev_q.start == fide_lowi_pkg::StartTogether) begin
          heard_d = 1'b1;
          heard_at_d = now_q;
          to_update = 1'b1;
        end else begin
          unsettled_d = 1'b1;
          unsettled_at_d = now_q;
          state_d = StLookForStart;
          if (ev_q.start == fide_lowi_pkg::StartJoin && cfg_i.begin_round != '0) begin
            heard_d = 1'b1;
            heard_at_d = now_q;
            through_d[cfg_i.begin_leader[$clog2(Members)-1:0]] = cfg_i.begin_round;
            to_update = 1'b1;
            if (|(members_d & mask_me) && cfg_i.me < cfg_i.begin_leader) begin
              // Its slot has passed, as the leader's next copy would say.
              heard_d = 1'b0;
              halt = 1'b1;
              halt_why = fide_lowi_pkg::HaltExpelled;
            end
          end
        end
      end

      // Before the start message nobody counts slots: see lowi.rs, look_for_start().
      StLookForStart: begin
        to_update = 1'b1;
        if (!heard_q && live != '0) begin
          slot_d = dead_before;
          if (starter != cfg_i.me) begin
            told_d = 1'b1;
            told_to_d = starter;
          end else if ((members_q & ~(mask_me | await_q | crashed_q)) == '0) begin
            slot_d = '0;
            heard_d = 1'b1;
            heard_at_d = now_q;
            unsettled_d = 1'b0;
          end
        end
      end

      StEvent: begin
        // Lookups for a copy.
        hit_d = match_ev;
        c_in_d = |(candidates & fide_lowi_pkg::only(ev_q.rank));
        c_slot_d = fide_lowi_pkg::ones16(below_ev);
        c_through_d = through_ev;
        c_offset_d = now_q - ev_q.sent_ns;
        c_due_d = now_q + flight;
        c_limit_d = 67'($signed(pace_offset_q)) + $signed(67'(aged_snap_q));
        c_old_d = |(crashed_q & fide_lowi_pkg::only(ev_q.rank)) && now_q > crash_at_ev + flight;
        c_refused_d = ev_q.rank == cfg_i.me || (ev_path_bit & all_paths) == '0 || ev_q.inst == '0 || ev_q.round == '0 ||
                      ev_q.round >= 64'h7fff_ffff_ffff_ffff || ev_q.round <= begun_q;
        if (halted_q != fide_lowi_pkg::HaltNone) begin
          refuse = ev_q.kind != fide_lowi_pkg::EvFault && ev_q.kind != fide_lowi_pkg::EvStart;
          release_ev = 1'b1;
          state_d = StIdle;
        end else begin
          unique case (ev_q.kind)
            fide_lowi_pkg::EvStart: state_d = StIdle;
            fide_lowi_pkg::EvFault: begin
              halt = 1'b1;
              halt_tell = 1'b1;
              halt_why = fide_lowi_pkg::HaltFault;
            end
            fide_lowi_pkg::EvMembers: begin
              crashed_d = crashed_q & ev_q.members;
              members_d = ev_q.members & AllRanks;
              awaiting_d = 1'b0;
              slot_d = '0;
              if (cfg_i.late_ns < late_q) late_d = cfg_i.late_ns;
              state_d = StDrain;
              if (me_member && (ev_q.members & mask_me) == '0) begin
                slot_d = slot_q;
                halt = 1'b1;
                halt_why = fide_lowi_pkg::HaltLeft;
              end
            end
            default: begin
              if (!(|(members_q & fide_lowi_pkg::only(ev_q.rank)))) begin
                refuse = 1'b1;
                release_ev = 1'b1;
                state_d = StIdle;
              end else begin
                unique case (ev_q.kind)
                  fide_lowi_pkg::EvCopy: state_d = StCopy2;
                  fide_lowi_pkg::EvReady: begin
                    await_d = await_q | fide_lowi_pkg::only(ev_q.rank);
                    state_d = StLookForStart;
                  end
                  fide_lowi_pkg::EvCrash: begin
                    state_d = StLookForStart;
                    hold_d = 1'b1;
                    if (|(crashed_q & fide_lowi_pkg::only(ev_q.rank))) begin
                      refuse = 1'b1;
                      hold_d = 1'b0;
                      state_d = StIdle;
                    end else if (ev_q.rank == cfg_i.me) begin
                      halt = 1'b1;
                      halt_why = fide_lowi_pkg::HaltExpelled;
                    end else begin
                      crashed_d = crashed_q | fide_lowi_pkg::only(ev_q.rank);
                      crash_at_d[ev_q.rank[$clog2(Members)-1:0]] = now_q;
                      for (int i = 0; i < int'(Members); i++) crash_after_d[i][ev_q.rank[$clog2(Members)-1:0]] = 1'b0;
                      crash_after_d[ev_q.rank[$clog2(Members)-1:0]] = ~(Members'(32'd1) << ev_q.rank);
                    end
                  end
                  default: begin  // EvExit
                    halt = 1'b1;
                    halt_why = fide_lowi_pkg::HaltFault;
                  end
                endcase
              end
            end
          endcase
        end
      end

      // Judged; then what lowi.rs calls take_copy().
      StCopy2: begin
        state_d = StCopy3;
        if (c_refused_q || ev_q.round <= c_through_q || (hit && f_closed_q[hit_index]) ||
            (hit && |(f_received_q[hit_index] & ev_path_bit)) || (hit && f_msg_q[hit_index] && !hit_same)) begin
          refuse = 1'b1;
          release_ev = 1'b1;
          state_d = StIdle;
        end else if (!c_in_q || c_old_q) begin
          halt = 1'b1;
          halt_tell = 1'b1;
          halt_why = fide_lowi_pkg::HaltFault;
        end else begin
          if (!pace_q || pace_leader_q != ev_q.rank || over <= 0) begin
            // Two clocks have passed since now_q, and at the next one it is three.
            pace_d = 1'b1;
            pace_leader_d = ev_q.rank;
            pace_offset_d = c_offset_q;
            aged_d = (cfg_i.drift_step == '0) ? '0 : DurW'(1);
            credit_d = (cfg_i.drift_step == '0) ? '0 : Million - 21'(cfg_i.drift_step) * 21'd3;
          end
          if (pace_q && pace_leader_q == ev_q.rank && over > $signed(67'(cfg_i.flight_ns))) begin
            halt = 1'b1;
            halt_tell = 1'b1;
            halt_why = fide_lowi_pkg::HaltFault;
          end else if (me_in_q && me_slot_q < c_slot_q) begin
            halt = 1'b1;
            halt_why = fide_lowi_pkg::HaltExpelled;
          end else if (heard_q && c_slot_q < slot_q) begin
            halt = 1'b1;
            halt_tell = 1'b1;
            halt_why = fide_lowi_pkg::HaltFault;
          end else if (ev_q.rank != last_leader_q && c_through_q < last_q + 64'(c_slot_q)) begin
            if (ev_q.round < last_q + 64'd1 + 64'(c_slot_q)) begin
              halt = 1'b1;
              halt_tell = 1'b1;
              halt_why = fide_lowi_pkg::HaltMissing;
            end else begin
              through_d[ev_q.rank[$clog2(Members)-1:0]] = last_q + 64'(c_slot_q);
              state_d = StSkip;
            end
          end
        end
      end

      // What a new leader said before its slot is over, whether it came or not.
      StSkip: begin
        if (|stale) begin
          f_valid_d[index_of(stale)] = 1'b0;
          free_valid_o = f_buffered_q[index_of(stale)];
          free_buffer_o = f_buffer_q[index_of(stale)];
        end else if (|catch_up) begin
          through_d[ev_q.rank[$clog2(Members)-1:0]] = through_ev + 64'd1;
        end else begin
          state_d = StCopy3;
        end
      end

      StCopy3, StInsert: begin
        if (state_q == StCopy3 && ev_q.round - through_ev > 64'(Window)) begin
          halt = 1'b1;
          halt_tell = 1'b1;
          halt_why = fide_lowi_pkg::HaltMissing;
        end else if (state_q == StCopy3 && ev_q.round != through_ev + 64'd1) begin
          gap_d = through_ev + 64'd1;
          state_d = StGap;
        end else if (!hit && !has_free) begin
          halt = 1'b1;
          halt_tell = 1'b1;
          halt_why = fide_lowi_pkg::HaltCapacity;
        end else begin
          take_d = hit ? hit_index : free_index;
          state_d = StIdle;
          if (!hit) begin
            f_valid_d[take_d] = 1'b1;
            f_closed_d[take_d] = 1'b0;
            f_rank_d[take_d] = ev_q.rank;
            f_number_d[take_d] = ev_q.round;
            f_due_d[take_d] = c_due_q;
          end
          if (!hit || !f_msg_q[take_d]) begin
            f_msg_d[take_d] = 1'b1;
            f_received_d[take_d] = '0;
            f_inst_d[take_d] = ev_q.inst;
            f_sent_d[take_d] = ev_q.sent_ns;
            f_digest_d[take_d] = ev_q.digest;
            f_batch_d[take_d] = ev_q.has_batch;
            f_barrier_d[take_d] = ev_q.barrier;
            f_len_d[take_d] = ev_q.len;
            f_buffered_d[take_d] = 1'b0;
          end
          f_received_d[take_d] = f_received_d[take_d] | ev_path_bit;
          if (ev_q.has_buffer) begin
            f_buffered_d[take_d] = 1'b1;
            f_buffer_d[take_d] = ev_q.buffer;
          end
          if (f_received_d[take_d] == all_paths) begin
            f_closed_d[take_d] = 1'b1;
            if (|ready_same) begin
              // Two members that used one number: the later delivery stands, as in lowi.rs.
              f_ready_d[index_of(ready_same)] = 1'b0;
              free_valid_o = f_buffered_q[index_of(ready_same)];
              free_buffer_o = f_buffer_q[index_of(ready_same)];
            end
            f_ready_d[take_d] = 1'b1;
            if (ev_q.round == through_ev + 64'd1) through_d[ev_q.rank[$clog2(Members)-1:0]] = ev_q.round;
            state_d = (f_ready_q == '0) ? StTake : StDrain;
          end else if (ev_valid_i && chains) begin
            take_event = 1'b1;
          end
        end
      end

      // Rounds that this copy shows to exist have Δ_I from now on.
      StGap: begin
        gap_d = gap_q + 64'd1;
        if (gap_q == ev_q.round) begin
          state_d = StInsert;
        end else if (!(|match_gap)) begin
          if (!has_free) begin
            halt = 1'b1;
            halt_tell = 1'b1;
            halt_why = fide_lowi_pkg::HaltCapacity;
          end else begin
            f_valid_d[free_index] = 1'b1;
            f_closed_d[free_index] = 1'b0;
            f_msg_d[free_index] = 1'b0;
            f_rank_d[free_index] = ev_q.rank;
            f_number_d[free_index] = gap_q;
            f_due_d[free_index] = c_due_q;
            f_received_d[free_index] = '0;
            f_buffered_d[free_index] = 1'b0;
          end
        end
      end

      // Delivered rounds in their order: one is taken at once, of several the lowest number is sought.
      StDrain: begin
        scan_d = '0;
        best_valid_d = 1'b0;
        take_d = index_of(f_ready_q);
        if (f_ready_q == '0) state_d = StCatch;
        else if ((f_ready_q & (f_ready_q - 1'b1)) == '0) state_d = StTake;
        else state_d = StScan;
      end

      StScan: begin
        scan_d = scan_q + 1'b1;
        if (f_ready_q[scan_q] && (!best_valid_q || f_number_q[scan_q] < f_number_q[best_q])) begin
          best_valid_d = 1'b1;
          best_d = scan_q;
        end
        if (scan_q == FlightW'(Flights - 1)) begin
          take_d = best_d;
          state_d = StTake;
        end
      end

      StTake: begin
        state_d = StDrain;
        if (awaiting_q && f_batch_q[take_q]) begin
          state_d = StCatch;
        end else if (!take_in) begin
          halt = 1'b1;
          halt_tell = 1'b1;
          halt_why = fide_lowi_pkg::HaltFault;
        end else if (f_number_q[take_q] > take_expected) begin
          state_d = StCatch;
        end else if (f_number_q[take_q] < take_expected || f_inst_q[take_q] != next_q || leaving_q) begin
          // It does not know what we know, or the other way round; or it follows on a round of ours that
          // has not left, which nobody can know.
          halt = 1'b1;
          halt_tell = 1'b1;
          halt_why = fide_lowi_pkg::HaltMissing;
        end else begin
          f_ready_d[take_q] = 1'b0;
          if (now_q > unsettled_at_q) unsettled_d = 1'b0;
          heard_now = 1'b1;
          heard_round = f_number_q[take_q];
          heard_rank = f_rank_q[take_q];
          if (f_batch_q[take_q]) begin
            next_d = next_q + 64'd1;
            decided_d = next_q;
            awaiting_d = f_barrier_q[take_q];
            push_until = 1'b1;
            decide_valid_o = 1'b1;
          end
        end
      end

      StCatch: begin
        if (ev_q.kind == fide_lowi_pkg::EvCopy && |catch_up) through_d[ev_q.rank[$clog2(Members)-1:0]] = through_ev + 64'd1;
        else to_update = 1'b1;
      end

      StUpd0: begin
        // A round that is over and taken needs no flight.
        for (int i = 0; i < int'(Flights); i++) begin
          if (f_closed_q[i] && !f_ready_q[i] && f_number_q[i] <= through_q[f_rank_q[i][$clog2(Members)-1:0]]) f_valid_d[i] = 1'b0;
        end
        me_in_d = |(candidates & mask_me);
        me_slot_d = fide_lowi_pkg::ones16(candidates & fide_lowi_pkg::below(cfg_i.me));
        count_d = fide_lowi_pkg::ones16(candidates);
        alone_d = (members_q & ~(mask_me | crashed_q)) == '0;
        dead_d = (set_before & ~crashed_q) == '0;
        dead_at_d = latest_before;
        single_d = set_others == '0;
        orphan_at_d = latest_others;
        has_left_d = !(|(members_q & fide_lowi_pkg::only(last_leader_q)));
        state_d = StUpd1;
      end

      StUpd1: begin
        wait_me_d = (last_q == '0) ? wait_start_i[me_slot_q[$clog2(Members+1)-1:0]] :
                    has_left_q ? wait_left_i[me_slot_q[$clog2(Members+1)-1:0]] : wait_run_i[me_slot_q[$clog2(Members+1)-1:0]];
        wait_next_d = (last_q == '0) ? wait_start_i[$clog2(Members+1)'(slot_q + 1'b1)] :
                      has_left_q ? wait_left_i[$clog2(Members+1)'(slot_q + 1'b1)] : wait_run_i[$clog2(Members+1)'(slot_q + 1'b1)];
        state_d = StUpd2;
      end

      StUpd2: begin
        speaks_d = heard_q && me_in_q;
        speak_at_d = (cfg_i.hurry && me_slot_q != '0 && dead_q && hurry_at < slot_at) ? hurry_at : slot_at;
        fence_d = slot_at + 64'(late_q);
        gives_up_d = heard_q && !(me_in_q && me_slot_q == slot_q);
        give_up_at_d = heard_at_q + 64'(wait_next_q);
        state_d = StIdle;
      end

      default: state_d = StOff;
    endcase

    if (take_event) begin
      ev_ready_o = 1'b1;
      ev_d = ev_i;
      now_d = time_i;
      aged_snap_d = aged_q;
      req_snap_d = req_valid_i;  // a report can let us speak in the same step
      state_d = StEvent;
    end
    if (heard_now) begin
      last_d = heard_round;
      last_leader_d = heard_rank;
      heard_d = 1'b1;
      heard_at_d = now_q;
      slot_d = '0;
    end
    if (push_until) begin
      until_d = {until_q[DepthMax-2:0], now_q + flight};
      until_valid_d = {until_valid_q[DepthMax-2:0], 1'b1};
    end
    if (refuse && refused_q != '1) refused_d = refused_q + 1'b1;
    if (release_ev && ev_q.has_buffer) begin
      free_valid_o = 1'b1;
      free_buffer_o = ev_q.buffer;
    end
    if (to_update) state_d = StUpd0;
    if (halt) begin
      // For good. What was not sent is not sent; what was decided stands.
      halted_d = halt_why;
      tells_exit_d = halt_tell && me_member && (members_q & ~(mask_me | crashed_q)) != '0 && (!unsettled_q || !heard_q) && cfg_i.exit_together;
      leaving_d = 1'b0;
      f_ready_d = '0;
      told_d = 1'b0;
      hold_d = 1'b0;
      state_d = StIdle;
    end
  end

  always_ff @(posedge clk_i) begin
    if (!rst_ni || clear_i) begin
      state_q <= StOff;
      hold_q <= 1'b0;
      halted_q <= fide_lowi_pkg::HaltNone;
      tells_exit_q <= 1'b0;
      members_q <= '0;
      crashed_q <= '0;
      await_q <= '0;
      through_q <= '0;
      last_q <= '0;
      last_leader_q <= '0;
      heard_q <= 1'b0;
      told_q <= 1'b0;
      slot_q <= '0;
      unsettled_q <= 1'b0;
      next_q <= 64'd1;
      decided_q <= '0;
      awaiting_q <= 1'b0;
      until_valid_q <= '0;
      refused_q <= '0;
      leaving_q <= 1'b0;
      left_q <= 1'b0;
      pace_q <= 1'b0;
      f_valid_q <= '0;
      f_closed_q <= '0;
      f_ready_q <= '0;
      speaks_q <= 1'b0;
      gives_up_q <= 1'b0;
      credit_q <= '0;
      aged_q <= '0;
    end else begin
      state_q <= state_d;
      hold_q <= hold_d;
      halted_q <= halted_d;
      tells_exit_q <= tells_exit_d;
      members_q <= members_d;
      crashed_q <= crashed_d;
      await_q <= await_d;
      through_q <= through_d;
      last_q <= last_d;
      last_leader_q <= last_leader_d;
      heard_q <= heard_d;
      told_q <= told_d;
      slot_q <= slot_d;
      unsettled_q <= unsettled_d;
      next_q <= next_d;
      decided_q <= decided_d;
      awaiting_q <= awaiting_d;
      until_valid_q <= until_valid_d;
      refused_q <= refused_d;
      leaving_q <= leaving_d;
      left_q <= left_d;
      pace_q <= pace_d;
      f_valid_q <= f_valid_d;
      f_closed_q <= f_closed_d;
      f_ready_q <= f_ready_d;
      speaks_q <= speaks_d;
      gives_up_q <= gives_up_d;
      credit_q <= credit_d;
      aged_q <= aged_d;
    end
  end

  // Data that is valid with a flag above: no reset.
  always_ff @(posedge clk_i) begin
    now_q <= now_d;
    ev_q <= ev_d;
    crash_at_q <= crash_at_d;
    crash_after_q <= crash_after_d;
    heard_at_q <= heard_at_d;
    told_to_q <= told_to_d;
    begun_q <= begun_d;
    unsettled_at_q <= unsettled_at_d;
    late_q <= late_d;
    until_q <= until_d;
    leaving_batch_q <= leaving_batch_d;
    leaving_sent_q <= leaving_sent_d;
    leaving_fence_q <= leaving_fence_d;
    leaving_free_q <= leaving_free_d;
    req_snap_q <= req_snap_d;
    pace_leader_q <= pace_leader_d;
    pace_offset_q <= pace_offset_d;
    aged_snap_q <= aged_snap_d;
    f_msg_q <= f_msg_d;
    f_rank_q <= f_rank_d;
    f_number_q <= f_number_d;
    f_due_q <= f_due_d;
    f_inst_q <= f_inst_d;
    f_sent_q <= f_sent_d;
    f_received_q <= f_received_d;
    f_digest_q <= f_digest_d;
    f_batch_q <= f_batch_d;
    f_barrier_q <= f_barrier_d;
    f_buffered_q <= f_buffered_d;
    f_buffer_q <= f_buffer_d;
    f_len_q <= f_len_d;
    me_in_q <= me_in_d;
    me_slot_q <= me_slot_d;
    count_q <= count_d;
    alone_q <= alone_d;
    dead_q <= dead_d;
    single_q <= single_d;
    dead_at_q <= dead_at_d;
    orphan_at_q <= orphan_at_d;
    wait_me_q <= wait_me_d;
    wait_next_q <= wait_next_d;
    has_left_q <= has_left_d;
    speak_at_q <= speak_at_d;
    give_up_at_q <= give_up_at_d;
    fence_q <= fence_d;
    hit_q <= hit_d;
    c_in_q <= c_in_d;
    c_refused_q <= c_refused_d;
    c_old_q <= c_old_d;
    c_slot_q <= c_slot_d;
    c_offset_q <= c_offset_d;
    c_through_q <= c_through_d;
    c_limit_q <= c_limit_d;
    c_due_q <= c_due_d;
    gap_q <= gap_d;
    scan_q <= scan_d;
    best_q <= best_d;
    best_valid_q <= best_valid_d;
    take_q <= take_d;
  end

  // The member that is waited for: C[slot].
  logic [15:0] rest;
  logic [4:0] skipped;
  always_comb begin
    rest = candidates;
    skipped = '0;
    state_o = '0;
    state_o.has_leader = 1'b0;
    for (int i = 0; i < int'(Members); i++) begin
      if (rest[i] && halted_q == fide_lowi_pkg::HaltNone && state_q != StOff) begin
        if (skipped == 5'(slot_q)) begin
          state_o.has_leader = 1'b1;
          state_o.leader = RankW'(i);
        end
        skipped = skipped + 1'b1;
      end
    end
    state_o.running = state_q != StOff;
    state_o.halted = halted_q;
    state_o.leads = state_o.has_leader && state_o.leader == cfg_i.me;
    state_o.awaiting = awaiting_q;
    state_o.heard = heard_q;
    state_o.unsettled = unsettled_q;
    state_o.slot = slot_q;
    state_o.round = last_q;
    state_o.next = next_q;
    state_o.decided = decided_q;
    state_o.members = members_q;
    state_o.crashed = crashed_q;
    state_o.tells_exit = tells_exit_q;
    state_o.tells_ready = told_q && !heard_q;
    state_o.ready_to = told_to_q;
    state_o.refused = refused_q;
    state_o.step_live = (state_q == StIdle && !hold_q) || (state_q != StOff && ev_ready_o);
    state_o.step_event = ev_ready_o;
    state_o.step_left = state_q == StIdle && any_due && settle_due;
  end

`include "fide_assert.svh"
  // What runs ahead of what was decided is one round of ours that leaves.
  `FIDE_ASSERT(DecidedIsNext_A, halted_q != fide_lowi_pkg::HaltNone || state_q == StOff || state_q == StStart ||
               decided_q + 64'd1 + 64'(leaving_q && leaving_batch_q) == next_q)
  `FIDE_ASSERT(SlotBounded_A, slot_q <= (RankW + 1)'(Members))
  `FIDE_ASSERT(CompleteIsClosed_A, (f_ready_q & ~f_closed_q) == '0)
  `FIDE_ASSERT(SpeakOnce_A, !(speak_valid_o && leaving_q))
  `FIDE_ASSERT(HaltedIsSilent_A, !(halted_q != fide_lowi_pkg::HaltNone && (speak_valid_o || decide_valid_o)))
  `FIDE_ASSERT(TimeGrows_A, $past(time_i) <= time_i || !$past(rst_ni))

`ifdef FIDE_CORE_FV
`include "fide_lowi_core_fv.svh"
`endif

endmodule

// SPDX-License-Identifier: Apache-2.0
// Inside fide_lowi_core: properties, and what must hold in every state so that induction over one clock
// is enough for them.
  logic fv_past_q = 1'b0;
  // The last instance that was decided and the last round that was spoken since the start.
  logic fv_decided_q = 1'b0, fv_spoke_q = 1'b0;
  logic [63:0] fv_inst_q, fv_round_q;
  always_ff @(posedge clk_i) begin
    fv_past_q <= 1'b1;
    if (!rst_ni || clear_i) begin
      fv_decided_q <= 1'b0;
      fv_spoke_q <= 1'b0;
    end else begin
      if (decide_valid_o) begin
        fv_decided_q <= 1'b1;
        fv_inst_q <= decide_o.inst;
      end
      if (speak_valid_o) begin
        fv_spoke_q <= 1'b1;
        fv_round_q <= speak_o.round;
      end
    end
  end
  logic fv_runs, fv_stepping;
  assign fv_runs = state_q != StOff && state_q != StStart && halted_q == fide_lowi_pkg::HaltNone;
  // A copy is in hand: time stands at now_q.
  assign fv_stepping = state_q == StEvent || state_q == StCopy2 || state_q == StSkip || state_q == StCopy3 ||
                       state_q == StGap || state_q == StInsert;
  logic [Flights-1:0] fv_late;
  for (genvar i = 0; i < int'(Flights); i++) begin : gen_fv_late
    assign fv_late[i] = f_valid_q[i] && !f_closed_q[i] && f_due_q[i] < now_q;
  end
  logic fv_matching, fv_unique;   // between the lookup of a copy's flight and its use
  assign fv_matching = state_q == StCopy2 || state_q == StSkip || state_q == StCopy3 || state_q == StGap || state_q == StInsert;
  always_comb begin
    fv_unique = 1'b1;
    for (int i = 0; i < int'(Flights); i++)
      for (int j = 0; j < i; j++)
        if (f_valid_q[i] && f_valid_q[j] && f_rank_q[i] == f_rank_q[j] && f_number_q[i] == f_number_q[j]) fv_unique = 1'b0;
  end
  always_comb begin
    // Round numbers are handed out one at a time from a 64-bit counter, which does not come to its end.
    assume (rst_ni == fv_past_q);
    assume (last_q < 64'h4000_0000_0000_0000 || !fv_past_q);
    if (fv_past_q && rst_ni) begin
      // No two decisions for one instance, and none is left out; no two rounds of ours with one number.
      if (decide_valid_o && fv_decided_q) decided_once_in_order: assert (decide_o.inst == fv_inst_q + 64'd1);
      if (speak_valid_o && fv_spoke_q) spoken_once: assert (speak_o.round > fv_round_q);
      if (decide_valid_o) counted: assert (decide_o.inst == decided_q + 64'd1 && decided_d == decide_o.inst);
      halted_is_silent: assert (halted_q == fide_lowi_pkg::HaltNone || !(speak_valid_o || decide_valid_o));
      // No timer is past its time-out when something is done with what it guards: copies are matched, and
      // a round is delivered, only while every flight is within its time.
      if (fv_runs && fv_stepping) no_flight_is_late: assert (fv_late == '0);
      if (fv_runs && state_q == StInsert && (f_ready_d & ~f_ready_q) != '0) delivered_in_time: assert (f_due_d[take_d] >= now_q);
      // A member speaks in its slot, not behind its fence, and one round at a time; a round of ours is
      // decided only if it left in time; the counter of slots ends with the members.
      if (speak_valid_o) speaks_in_its_slot: assert (now_q >= speak_at_q && (alone_q || now_q <= fence_q) && !leaving_q);
      if (decide_valid_o && decide_o.own)
        left_in_time: assert ((leaving_free_q || now_q <= leaving_fence_q) && (alone_q || now_q <= leaving_sent_q + 64'(late_q)));
      slot_bounded: assert (slot_q <= (RankW + 1)'(Members));

      // What makes these inductive.
      if (fv_runs) inv_next: assert (decided_q + 64'd1 + 64'(leaving_q && leaving_batch_q) == next_q);
      if (fv_runs && fv_decided_q) inv_decided: assert (fv_inst_q == decided_q);
      if (fv_runs && fv_spoke_q) inv_spoken: assert (fv_round_q <= last_q);
      if (state_q == StOff || state_q == StStart) inv_off: assert (f_valid_q == '0 && f_ready_q == '0 && !leaving_q && !hold_q &&
        halted_q == fide_lowi_pkg::HaltNone && slot_q == '0 && members_q == '0 && !speaks_q && !gives_up_q && !fv_decided_q && !fv_spoke_q);
      if (halted_q != fide_lowi_pkg::HaltNone) inv_halted: assert (state_q == StIdle || state_q == StEvent);
      if (state_q == StSettle) inv_settle: assert (leaving_q);
      if (state_q == StSpeak) inv_speak: assert (!leaving_q && now_q >= speak_at_q);
      if (fv_runs) inv_slot: assert (slot_q < (RankW + 1)'(Members));
      inv_members: assert ((members_q & ~AllRanks) == '0);
      if (gives_up_q || state_q == StGiveUp || state_q == StUpd1 || state_q == StUpd2) inv_count: assert (count_q <= (RankW + 1)'(Members));
      if (state_q != StOff) inv_time: assert (now_q <= time_i);
      inv_unique: assert (fv_unique);
      if (fv_matching) inv_hit: assert (hit_q == match_ev);
      if (fv_matching) inv_due: assert (c_due_q == now_q + flight);
      if (fv_matching || state_q == StEvent) inv_live: assert (!hold_q);
      if (fv_matching && state_q != StCopy2) inv_open: assert ((hit_q & f_closed_q) == '0 && through_ev < ev_q.round);
      if (state_q == StCopy2) inv_through: assert (c_through_q == through_ev);
      if (state_q == StGap) inv_gap: assert (gap_q <= ev_q.round);
      inv_state: assert (5'(state_q) <= 5'(StUpd2));
      inv_ready: assert ((f_ready_q & ~(f_closed_q & f_valid_q)) == '0);
    end
  end

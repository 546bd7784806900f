// SPDX-License-Identifier: Apache-2.0
// The request FIFO against queues: requests of any length, word by word, some of which are not committed; more than it holds; proposed and
// decided in their order, with stops. What is read of a request is what came, as often as it is read.
module fide_request_fifo_tb;
`include "fide_bench.svh"

  localparam int unsigned Depth = 4, MaxBeats = 16, BeatW = $clog2(MaxBeats + 1) + 1;
  logic clear, s_valid, s_first, commit, commit_barrier, full, req_valid, req_barrier, req_pop, dec_pop;
  logic [511:0] s_data, req_data, dec_data;
  logic [fide_lowi_pkg::LenW-1:0] commit_len, req_len, dec_len;
  logic [BeatW-1:0] req_beat, dec_beat;
  fide_request_fifo #(.Depth(Depth), .MaxBeats(MaxBeats)) dut (
    .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .s_valid_i(s_valid), .s_first_i(s_first), .s_data_i(s_data),
    .commit_i(commit), .commit_len_i(commit_len), .commit_barrier_i(commit_barrier), .full_o(full),
    .req_valid_o(req_valid), .req_barrier_o(req_barrier), .req_len_o(req_len), .req_beat_i(req_beat), .req_data_o(req_data),
    .req_pop_i(req_pop), .dec_len_o(dec_len), .dec_beat_i(dec_beat), .dec_data_o(dec_data), .dec_pop_i(dec_pop)
  );

  typedef struct packed {
    logic [MaxBeats-1:0][511:0] words;
    logic [fide_lowi_pkg::LenW-1:0] len;
    logic barrier;
  } request_t;
  request_t all [$], coming;             // that are in it: the first `proposed` of them were
  int unsigned proposed = 0, sent = 0, refused = 0, read = 0, wrapped = 0, stops = 0;
  int unsigned words, at, gap;
  logic arriving, taken;

  initial begin
    {clear, s_valid, s_first, s_data, commit, commit_len, commit_barrier, req_pop, dec_pop, req_beat, dec_beat} = '0;
    arriving = 1'b0;
    gap = 0;
    reset();
    for (int unsigned n = 0; n < 60_000; n++) begin
      int unsigned drains = 2 + 8 * ((n / 2_000) % 7);      // from much faster to slower than requests come
      {s_valid, s_first, commit, req_pop, dec_pop} = '0;
      clear = one_in(2_000);
      s_data = {8{draw64()}};
      // The frame's first word has no part of the request; the others are the request's. Its end is known with its last word.
      if (!arriving) begin
        if (gap != 0) gap--;
        else begin
          arriving = 1'b1;
          words = 1 + below(MaxBeats + (one_in(10) ? 3 : 0));   // and some that are too long, which are never committed
          at = 0;
          s_valid = 1'b1;
          s_first = 1'b1;
          taken = all.size() < Depth;
          sent++;
        end
      end else if (!one_in(4)) begin
        s_valid = 1'b1;
        if (at < MaxBeats) coming.words[at[3:0]] = s_data;
        at++;
        if (at == words) begin
          arriving = 1'b0;
          gap = below(4);
          coming.len = fide_lowi_pkg::LenW'(words <= MaxBeats ? 64 * words - below(64) : 0);
          coming.barrier = one_in(3);
          commit = words <= MaxBeats && !one_in(5);
        end
      end
      commit_len = coming.len;
      commit_barrier = coming.barrier;
      // A word that is asked for comes a clock later: nothing is taken in between.
      req_beat = BeatW'(below(MaxBeats));
      dec_beat = BeatW'(below(MaxBeats));
      settle();
      `CHECK(req_valid == (32'(proposed) < all.size()), "a request waits or does not")
      if (req_valid) `CHECK(req_len == all[proposed].len && req_barrier == all[proposed].barrier, "the next one's length, and what it is")
      if (proposed != 0) `CHECK(dec_len == all[0].len, "the length of the next that is decided")
      if (s_valid && !s_first) `CHECK(full == !taken, "whether it fits is known from its first word on")
      if (commit && !taken) refused++;
      req_pop = req_valid && one_in(drains);
      dec_pop = proposed != 0 && one_in(drains);
      tick();
      if (req_valid && 32'(req_beat) < (32'(all[proposed].len) + 63) / 64 && !req_pop && !clear) begin
        `CHECK(req_data == all[proposed].words[req_beat[3:0]], "a word of the next request")
        read++;
      end
      if (dec_len != 0 && proposed != 0 && 32'(dec_beat) < (32'(all[0].len) + 63) / 64 && !dec_pop && !clear) begin
        `CHECK(dec_data == all[0].words[dec_beat[3:0]], "a word of the next decision")
        read++;
      end
      if (clear) begin
        all.delete();
        proposed = 0;
        taken = 1'b0;
        stops++;
      end else begin
        if (commit && taken) begin
          all.push_back(coming);
          wrapped += 32'(all.size() == Depth);
        end
        if (req_pop) proposed++;
        if (dec_pop) begin
          void'(all.pop_front());
          proposed--;
        end
      end
    end
    `CHECK(refused > 100 && wrapped > 100 && read > 10_000 && stops > 10, "it was full, read, and stopped")
    $display("fide_request_fifo: %0d requests, %0d without room, %0d words read", sent, refused, read);
    done("fide_request_fifo");
  end
endmodule

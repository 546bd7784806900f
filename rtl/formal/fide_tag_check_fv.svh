// SPDX-License-Identifier: Apache-2.0
// Inside fide_tag_check: the frame that is followed.
  (* anyseq *) logic follow;             // the frame that begins now
  logic fv_on_q = 1'b0;                  // it is in
  logic fv_was_q = 1'b0;                 // one was, or is
  logic [LaneW-1:0] fv_lane_q;
  // Of its words the bits that are not constant in fide_tag_check_fv: {keep, last byte, tag, first byte}.
  localparam int unsigned BitsW = 64 + 80;
  logic [Beats-1:0][BitsW-1:0] fv_bits_q;
  logic [BitsW-1:0] fv_in, fv_hashes, fv_leaves;   // … that comes, is hashed next, leaves next
  function automatic logic [BitsW-1:0] fv_of(input logic [63:0] keep, input logic [511:0] data);
    fv_of = {keep, data[511:504], data[8*fide_wire_pkg::TAG_AT +: 64], data[7:0]};
  endfunction
  assign fv_in = fv_of(s_axis_tkeep_i, s_axis_tdata_i);
  always_comb begin
    fv_hashes = fv_bits_q[0];
    fv_leaves = fv_bits_q[0];
    for (int unsigned i = 1; i < Beats; i++) begin
      if (fv_hashed_q == BeatW'(i)) fv_hashes = fv_bits_q[i];
      if (fv_out_q == BeatW'(i)) fv_leaves = fv_bits_q[i];
    end
  end
  logic [BeatW-1:0] fv_words_q, fv_hashed_q, fv_out_q;
  logic fv_whole_q, fv_user_q, fv_begins, fv_more;
  logic [3:0] fv_ahead_q, fv_inside_q;   // frames that are to leave first; all that are in it
  logic [63:0] fv_tag;
  logic [Lanes-1:0][63:0] fv_tags;
  logic [Lanes-1:0] fv_pops, fv_first, fv_last;
  logic [Lanes-1:0][79:0] fv_head;
  logic [Lanes-1:0][3:0] fv_hash_words;
  assign fv_begins = take && first_q && follow && !fv_was_q;
  assign fv_more   = take && !first_q && fv_on_q && !fv_whole_q;
  assign fv_tag    = fv_tags[fv_lane_q];

  always_ff @(posedge clk_i) begin
    if (!rst_ni) begin
      fv_inside_q <= '0;
    end else begin
      fv_inside_q <= fv_inside_q + 4'(take && first_q) - 4'(leaves_last);
      if (fv_begins) begin
        fv_on_q <= 1'b1;
        fv_was_q <= 1'b1;
        fv_lane_q <= in_q;
        fv_bits_q[0] <= fv_in;
        fv_words_q <= BeatW'(1);
        fv_hashed_q <= '0;
        fv_out_q <= '0;
        fv_whole_q <= s_axis_tlast_i;
        fv_user_q <= s_axis_tuser_i;
        fv_ahead_q <= fv_inside_q - 4'(leaves_last);
      end else if (fv_on_q) begin
        if (fv_more) begin
          // What is too long is cut: the words behind are not kept.
          if (fv_words_q < BeatW'(Beats)) begin
            for (int unsigned i = 1; i < Beats; i++) if (fv_words_q == BeatW'(i)) fv_bits_q[i] <= fv_in;
            fv_words_q <= fv_words_q + 1'b1;
          end
          fv_whole_q <= s_axis_tlast_i;
          fv_user_q <= s_axis_tuser_i;
        end
        if (fv_pops[fv_lane_q]) fv_hashed_q <= fv_hashed_q + 1'b1;
        if (leaves && fv_ahead_q == '0) fv_out_q <= fv_out_q + 1'b1;
        if (leaves_last) begin
          if (fv_ahead_q == '0) fv_on_q <= 1'b0;
          fv_ahead_q <= fv_ahead_q - 1'b1;
        end
      end
    end
  end

  logic [6:0] fv_bytes;
  always_comb begin
    fv_bytes = '0;
    for (int unsigned i = 0; i < 64; i++) fv_bytes = fv_bytes + {6'd0, fv_hashes[BitsW-64+i]};
  end
  always_comb begin
    if (rst_ni && fv_on_q) begin
      if (fv_pops[fv_lane_q]) begin
        hashes_what_came: assert (fv_hashed_q < fv_words_q && fv_head[fv_lane_q] == fv_hashes[79:0] &&
                                  fv_hash_words[fv_lane_q] == fv_bytes[6:3]);
        hashes_from_the_first: assert (fv_first[fv_lane_q] == (fv_hashed_q == '0));
        hashes_to_the_last: assert (fv_last[fv_lane_q] == ((fv_hashed_q + 1'b1 == fv_words_q && fv_whole_q) || fv_hashed_q == BeatW'(Beats - 1)));
      end
      if (leaves && fv_ahead_q == '0) begin
        leaves_from_its_lane: assert (out_q == fv_lane_q);
        leaves_as_it_came: assert (fv_out_q < fv_words_q && fv_of(m_axis_tkeep_o, m_axis_tdata_o) == fv_leaves);
        leaves_to_the_last: assert (m_axis_tlast_o == ((fv_out_q + 1'b1 == fv_words_q && fv_whole_q) || fv_out_q == BeatW'(Beats - 1)));
      end
      if (leaves_last && fv_ahead_q == '0) begin
        leaves_whole: assert (fv_whole_q && fv_hashed_q == fv_words_q && fv_out_q + 1'b1 == fv_words_q);
        with_its_verdict: assert (tag_bad_o == (fv_bits_q[0][8 +: 64] != fv_tag) && hash_valid[fv_lane_q]);
        with_the_macs: assert (m_axis_tuser_o == fv_user_q);
      end
    end
    if (rst_ni) nothing_without_a_frame: assert (!leaves || fv_inside_q != '0);
  end

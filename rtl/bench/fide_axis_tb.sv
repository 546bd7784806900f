// SPDX-License-Identifier: Apache-2.0
// The width adapters: frames of any length on a narrow bus, with and without pauses, are the same bytes on the wide one; and wide frames,
// of which some are withdrawn by a stop, are the same on the narrow one, while the network takes words or does not.
module fide_axis_tb;
`include "fide_bench.svh"

`ifndef WIDTH
`define WIDTH 64
`endif
  localparam int unsigned W = `WIDTH, Bytes = W / 8;

  // To the wide bus.
  logic in_valid, in_last, in_user, wide_valid, wide_last, wide_user, idle;
  logic [W-1:0] in_data;
  logic [Bytes-1:0] in_keep;
  logic [511:0] wide_data;
  logic [63:0] wide_keep;
  fide_axis_widen #(.InW(W)) u_widen (
    .clk_i(clk), .rst_ni(rst_n), .s_axis_tvalid_i(in_valid), .s_axis_tdata_i(in_data), .s_axis_tkeep_i(in_keep), .s_axis_tlast_i(in_last),
    .s_axis_tuser_i(in_user), .m_axis_tvalid_o(wide_valid), .m_axis_tdata_o(wide_data), .m_axis_tkeep_o(wide_keep),
    .m_axis_tlast_o(wide_last), .m_axis_tuser_o(wide_user), .idle_o(idle)
  );
  // {user, last, keep, data} of each wide word.
  logic [577:0] expected [$], word;
  int unsigned frames_in = 0, len, at, part;
  logic busy_in;
  task automatic feed(input logic pauses);
    if (!busy_in) begin
      len = 1 + (one_in(3) ? below(200) : 8 * below(20));
      at = 0;
      part = 0;
      word = '0;
      busy_in = 1'b1;
    end
    in_valid = !pauses || !one_in(3);
    in_last = at + Bytes >= len;
    in_user = one_in(2);
    for (int unsigned i = 0; i < Bytes; i++) begin
      in_data[8*i +: 8] = 8'($urandom());
      in_keep[i] = at + i < len;
      if (!in_keep[i]) in_data[8*i +: 8] = '0;
    end
    if (in_valid) begin
      word[W*part +: W] = in_data;
      word[512 + Bytes*part +: Bytes] = in_keep;
      part++;
      at += Bytes;
      if (in_last || part == 512 / W) begin
        expected.push_back({in_user, in_last, word[575:0]});
        word = '0;
        part = 0;
      end
      if (in_last) begin
        busy_in = 1'b0;
        frames_in++;
      end
    end
  endtask

  // To the narrow bus.
  logic clear, s_valid, s_ready, s_last, m_valid, m_ready, m_last, held;
  logic [511:0] s_data;
  logic [63:0] s_keep;
  logic [W-1:0] m_data, held_data;
  logic [Bytes-1:0] m_keep;
  fide_axis_narrow #(.OutW(W)) u_narrow (
    .clk_i(clk), .rst_ni(rst_n), .clear_i(clear), .s_axis_tvalid_i(s_valid), .s_axis_tready_o(s_ready), .s_axis_tdata_i(s_data),
    .s_axis_tkeep_i(s_keep), .s_axis_tlast_i(s_last), .m_axis_tvalid_o(m_valid), .m_axis_tready_i(m_ready), .m_axis_tdata_o(m_data),
    .m_axis_tkeep_o(m_keep), .m_axis_tlast_o(m_last)
  );
  int unsigned out_bytes, out_at = 0, words_out = 0, ends_out = 0, withdrawn = 0;

  logic [577:0] want;
  initial begin
    {in_valid, in_data, in_keep, in_last, in_user, clear, s_valid, s_data, s_keep, s_last, m_ready, held, busy_in} = '0;
    reset();
    `CHECK(idle, "nothing is in it at first")
    for (int unsigned n = 0; n < 40_000; n++) begin
      feed((n / 1_000) % 2 == 1);
      if (!s_valid && !one_in(3)) begin
        s_valid = 1'b1;
        s_last = one_in(3);
        out_bytes = s_last ? 1 + below(64) : 64;
        for (int unsigned i = 0; i < 8; i++) s_data[64*i +: 64] = draw64();
        s_keep = (out_bytes == 64) ? '1 : ~('1 << out_bytes);
        out_at = 0;
      end
      m_ready = !one_in(2 + (n / 1_000) % 4);
      clear = s_valid && one_in(500);
      settle();
      // At 512 bits a word is on both sides in the same clock, else behind its last part.
      if (W == 512) begin
        `CHECK(idle, "it holds nothing")
        if (wide_valid) begin
          `CHECK(expected.size() == 1, "a word that nobody sent")
          want = expected.pop_front();
          `CHECK({wide_user || !wide_last, wide_last, wide_keep, wide_data} == {want[577] || !wide_last, want[576:0]}, "the word as it came")
        end
      end
      `CHECK(m_valid == s_valid, "a part is offered as long as the word is")
      if (m_valid) begin
        `CHECK(!held || m_data == held_data, "a part that waits stays as it is")
        for (int unsigned i = 0; i < Bytes; i++) begin
          `CHECK(m_keep[i] == (out_at + i < out_bytes), "as many bytes as there are")
          if (m_keep[i]) `CHECK(m_data[8*i +: 8] == s_data[8*(out_at + i) +: 8], "the bytes in their order")
        end
        `CHECK(s_ready == (m_ready && out_at + Bytes >= out_bytes), "the word is taken with its last part")
        `CHECK(m_last == (s_last && out_at + Bytes >= out_bytes), "its end is the frame's")
      end
      held = m_valid && !m_ready && !clear;
      held_data = m_data;
      begin
        logic part_taken, word_taken;
        part_taken = m_valid && m_ready;
        word_taken = s_valid && s_ready;
        tick();
        if (part_taken) out_at += Bytes;
        if (word_taken || clear) begin
          words_out++;
          ends_out += 32'(s_last);
          withdrawn += 32'(!word_taken);
          s_valid = 1'b0;
        end
      end
      if (W != 512) begin
        settle();
        if (wide_valid) begin
          `CHECK(expected.size() == 1, "a word that nobody sent")
          want = expected.pop_front();
          `CHECK(wide_last == want[576] && wide_keep == want[575:512] && wide_data == want[511:0], "the word as it came")
          if (wide_last) `CHECK(wide_user == want[577], "the MAC's verdict stays with its frame")
          `CHECK(!idle, "a word is in it")
        end
        `CHECK(expected.size() == 0, "a word is offered in the clock behind its last part")
        `CHECK(idle == (!wide_valid && (!busy_in || at == 0)), "idle when no part of a frame is in it")
      end
    end
    `CHECK(frames_in > 500 && words_out > 500 && ends_out > 100 && (W == 512 || withdrawn > 5), "frames went both ways")
    $display("fide_axis, %0d bits: %0d frames widened, %0d words narrowed", W, frames_in, words_out);
    done("fide_axis");
  end
endmodule

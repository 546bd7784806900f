// SPDX-License-Identifier: Apache-2.0
// The tag check and SipHash: frames of any length, some with a tag, a byte or a length that is wrong, with and without pauses. Words come
// out as they went in and in their order; the verdict is that of a hash written byte by byte. A frame that finds no lane is dropped whole.
module fide_tag_check_tb;
`include "fide_bench.svh"
`include "fide_bench_frame.svh"

`ifndef TAG_WORDS
`define TAG_WORDS 1
`endif
  logic [127:0] key;
  logic valid, last, user, out_valid, out_last, out_user, bad, room, drop, busy;
  logic [511:0] data, out_data;
  logic [63:0] keep, out_keep;
  fide_tag_check #(.Lanes(4), .Words(`TAG_WORDS)) dut (
    .clk_i(clk), .rst_ni(rst_n), .key_i(key),
    .s_axis_tvalid_i(valid), .s_axis_tdata_i(data), .s_axis_tkeep_i(keep), .s_axis_tlast_i(last), .s_axis_tuser_i(user),
    .m_axis_tvalid_o(out_valid), .m_axis_tdata_o(out_data), .m_axis_tkeep_o(out_keep), .m_axis_tlast_o(out_last),
    .m_axis_tuser_o(out_user), .tag_bad_o(bad), .room_o(room), .drop_o(drop), .busy_o(busy)
  );

  // {bad, user, last, keep, data}
  logic [578:0] expected [$], want;
  int unsigned good_frames = 0, bad_frames = 0, dropped = 0, most = 0;
  logic first;

  always @(negedge clk) begin
    #2;
    if (rst_n && out_valid) begin
      `CHECK(expected.size() != 0, "a word that nobody sent")
      want = expected.pop_front();
      `CHECK(out_data == want[511:0] && out_keep == want[575:512], "words are as they came, in their order")
      `CHECK(out_last == want[576], "the last word is the last")
      if (out_last) begin
        `CHECK(out_user == want[577], "the MAC's verdict stays with its frame")
        `CHECK(bad == want[578], "the verdict is that of the reference")
        if (bad) bad_frames++; else good_frames++;
      end
    end
  end

  logic [63:0] tag;
  logic wrong, fits, takes;
  int unsigned pause, dice;
  initial begin
    {valid, last, user, data, keep} = '0;
    key = {draw64(), draw64()};
    first = 1'b1;
    reset();
    for (int unsigned n = 0; n < 1_500; n++) begin
      if (n % 100 == 0) begin
        while (busy) tick();
        key = {draw64(), draw64()};
        pause = below(3) * below(60);
      end
      bytes_len = 8 * (6 + (one_in(20) ? below(179) : below(30)));
      for (int unsigned i = 0; i < bytes_len; i++) bytes[i] = 8'($urandom());
      tag_of(key, tag);
      put(fide_wire_pkg::TAG_AT, 8, tag);
      wrong = one_in(3);
      if (wrong) begin
        dice = below(3);
        case (dice)
          0: begin
            dice = below(bytes_len);
            bytes[dice] ^= 8'd1 << below(8);
          end
          1: put(fide_wire_pkg::TAG_AT, 8, ~tag);
          default: begin
            // Cut: of another length than was hashed.
            if (bytes_len > 56) bytes_len -= 8; else bytes[0] ^= 8'h80;
          end
        endcase
      end
      user = 1'b0;
      fits = 1'b0;
      for (int unsigned w = 0; w < words_of(); w++) begin
        valid = 1'b1;
        data = word_of(w);
        keep = keep_of(w);
        last = w + 1 == words_of();
        user = last && one_in(20);
        settle();
        if (w == 0) begin
          fits = !drop;
          `CHECK(fits || busy, "a frame finds a lane when nothing is under way")
          if (drop) dropped++;
        end else begin
          `CHECK(!drop, "a frame is dropped with its first word")
        end
        if (fits) expected.push_back({wrong, user, last, keep, data});
        if (expected.size() > most) most = expected.size();
        tick();
        valid = 1'b0;
        if (one_in(8) && pause != 0) repeat (below(4)) tick();
      end
      last = 1'b0;
      if (pause != 0) repeat (below(pause)) tick();
    end
    repeat (4_000) tick();
    `CHECK(expected.size() == 0, "every frame has left")
    `CHECK(good_frames > 200 && bad_frames > 100 && dropped > 50, "good, bad and dropped frames were there")
    $display("fide_tag_check, %0d words a clock: %0d good, %0d bad, %0d dropped", `TAG_WORDS, good_frames, bad_frames, dropped);
    done("fide_tag_check");
  end
endmodule

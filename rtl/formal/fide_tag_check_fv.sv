// SPDX-License-Identifier: Apache-2.0
// The tag check, with any hash (fide_siphash_any), for frames of up to two words and longer ones that are cut behind the third. One frame is
// followed: its lane's hash takes its words once, in their order; its words leave as they came; and its last one leaves with the verdict
// that its own tag is the hash of its own words. Frames leave in the order in which they came.
module fide_tag_check_fv (
  input logic         clk_i,
  input logic         rst_ni,
  input logic [127:0] key_i,
  input logic         valid_i,
  input logic [63:0]  tag_i,       // where the tag is in a first word
  input logic [7:0]   first_i,     // the first and the last byte of a word
  input logic [7:0]   end_i,
  input logic [6:0]   bytes_i,
  input logic         last_i,
  input logic         user_i
);
  // Bytes are only carried: those between are zero, which makes the proof smaller.
  logic [511:0] data;
  assign data = {end_i, 120'd0, tag_i, 312'd0, first_i};
  logic [63:0] keep;
  assign keep = ~({64{1'b1}} << bytes_i);
  logic tvalid, tlast, tuser, bad, room, drop, busy;
  logic [511:0] tdata;
  logic [63:0] tkeep;
  fide_tag_check #(.Lanes(2), .Words(1), .Beats(3)) u_check (
    .clk_i, .rst_ni, .key_i, .s_axis_tvalid_i(valid_i), .s_axis_tdata_i(data), .s_axis_tkeep_i(keep), .s_axis_tlast_i(last_i),
    .s_axis_tuser_i(user_i), .m_axis_tvalid_o(tvalid), .m_axis_tdata_o(tdata), .m_axis_tkeep_o(tkeep), .m_axis_tlast_o(tlast),
    .m_axis_tuser_o(tuser), .tag_bad_o(bad), .room_o(room), .drop_o(drop), .busy_o(busy)
  );

  logic past_q = 1'b0;
  logic room_q, in_frame_q;
  always_ff @(posedge clk_i) begin
    past_q <= 1'b1;
    room_q <= room && !valid_i;   // no other frame takes it
    if (!rst_ni) in_frame_q <= 1'b0;
    else if (valid_i) in_frame_q <= !last_i;
  end
  always_comb begin
    assume (rst_ni == past_q);
    assume (bytes_i >= 7'd1 && bytes_i <= 7'd64);
    if (!last_i) assume (bytes_i == 7'd64);
    if (past_q) begin
      dropped_with_its_first_word: assert (!drop || (valid_i && !in_frame_q));
      room_is_kept: assert (!(room_q && rst_ni && drop));
    end
  end
endmodule

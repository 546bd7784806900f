// SPDX-License-Identifier: Apache-2.0
// A narrow stream made wide and narrow again is the same stream: its words come out once, in their order,
// with the same bytes and ends. The one that leaves keeps the rules of AXI-Stream.
`ifndef FV_WIDTH
`define FV_WIDTH 64
`endif
module fide_axis_fv #(
  parameter int unsigned Width = `FV_WIDTH
) (
  input logic               clk_i,
  input logic               rst_ni,
  input logic               valid_i,
  input logic [Width-1:0]   data_i,
  input logic [$clog2(Width/8):0] bytes_i,
  input logic               last_i,
  input logic               user_i,
  input logic               ready_i,
  input logic               watch_i    // follow the word that goes in now
);
  localparam int unsigned KeepW = Width / 8;
  logic [KeepW-1:0] keep;
  assign keep = ~({KeepW{1'b1}} << bytes_i);
  logic wide_valid, wide_last, wide_user, idle, tready, tvalid, tlast;
  logic [511:0] wide_data;
  logic [63:0] wide_keep;
  logic [Width-1:0] tdata;
  logic [KeepW-1:0] tkeep;
  fide_axis_widen #(.InW(Width)) u_widen (
    .clk_i, .rst_ni, .s_axis_tvalid_i(valid_i), .s_axis_tdata_i(data_i), .s_axis_tkeep_i(keep), .s_axis_tlast_i(last_i),
    .s_axis_tuser_i(user_i), .m_axis_tvalid_o(wide_valid), .m_axis_tdata_o(wide_data), .m_axis_tkeep_o(wide_keep),
    .m_axis_tlast_o(wide_last), .m_axis_tuser_o(wide_user), .idle_o(idle)
  );
  // What the wide side holds until it is taken.
  logic full, out_valid;
  logic [576:0] out;
  logic [2:0] level;
  fide_fifo #(.Width(577), .Depth(4)) u_fifo (
    .clk_i, .rst_ni, .clear_i(1'b0), .push_i(wide_valid), .data_i({wide_last, wide_keep, wide_data}), .full_o(full),
    .valid_o(out_valid), .data_o(out), .pop_i(tready && out_valid), .level_o(level)
  );
  fide_axis_narrow #(.OutW(Width)) u_narrow (
    .clk_i, .rst_ni, .clear_i(1'b0), .s_axis_tvalid_i(out_valid), .s_axis_tready_o(tready), .s_axis_tdata_i(out[511:0]),
    .s_axis_tkeep_i(out[575:512]), .s_axis_tlast_i(out[576]), .m_axis_tvalid_o(tvalid), .m_axis_tready_i(ready_i),
    .m_axis_tdata_o(tdata), .m_axis_tkeep_o(tkeep), .m_axis_tlast_o(tlast)
  );

  logic past_q = 1'b0;
  logic watched_q = 1'b0, seen_q = 1'b0, waits_q;
  logic [5:0] in_q, out_q, at_q;
  logic [Width-1:0] data_q, held_q;
  logic [KeepW-1:0] keep_q, held_keep_q;
  logic last_q, held_last_q, ended_q, user_q;
  always_ff @(posedge clk_i) begin
    past_q <= 1'b1;
    waits_q <= rst_ni && tvalid && !ready_i;
    held_q <= tdata;
    held_keep_q <= tkeep;
    held_last_q <= tlast;
    ended_q <= rst_ni && valid_i && last_i;
    user_q <= user_i;
    if (!rst_ni) begin
      in_q <= '0;
      out_q <= '0;
    end else begin
      if (valid_i) in_q <= in_q + 1'b1;
      if (tvalid && ready_i) out_q <= out_q + 1'b1;
      if (valid_i && watch_i && !watched_q) begin
        watched_q <= 1'b1;
        at_q <= in_q;
        data_q <= data_i;
        keep_q <= keep;
        last_q <= last_i;
      end
      if (tvalid && ready_i && watched_q && out_q == at_q) seen_q <= 1'b1;
    end
  end
  logic [Width-1:0] mask, seen_mask;
  always_comb for (int unsigned i = 0; i < KeepW; i++) begin
    mask[8*i +: 8] = {8{keep_q[i]}};
    seen_mask[8*i +: 8] = {8{tkeep[i]}};
  end
  always_comb begin
    assume (rst_ni == past_q);
    assume (bytes_i >= 1 && 32'(bytes_i) <= KeepW);
    if (!last_i) assume (32'(bytes_i) == KeepW);
    assume (!full);
    if (past_q) begin
      no_more_out_than_in: assert (out_q <= in_q);
      stays_until_taken: assert (!waits_q || (tvalid && tdata == held_q && tkeep == held_keep_q && tlast == held_last_q));
      ends_with_it: assert (!ended_q || (wide_valid && wide_last && wide_user == user_q) || Width == 512);
      if (tvalid && watched_q && out_q == at_q) begin
        same_word: assert (((tdata ^ data_q) & mask) == '0 && tkeep == keep_q && tlast == last_q && seen_mask == mask);
      end
      nothing_is_left: assert (!idle || level != '0 || out_q == in_q || valid_i || Width == 512);
    end
  end
endmodule
